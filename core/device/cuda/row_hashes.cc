#include "core/device/cuda/row_hashes.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

namespace pleiad::cuda {

absl::StatusOr<RowHashes> RowHashes::Create(absl::Span<const RowHash> hashes) {
  RowHashes made;
  std::vector<std::byte> host;
  const auto add = [&host](const auto& values) {
    const uint64_t at = host.size();
    const size_t bytes = values.size() * sizeof(values[0]);
    host.resize(at + bytes);
    std::memcpy(host.data() + at, values.data(), bytes);
    return at;
  };
  std::vector<std::pair<uint64_t, uint64_t>> places;  // of heads and multipliers
  for (const RowHash& hash : hashes) {
    const HashConstants& constants = hash.hasher.constants();
    std::vector<HashHead> heads;
    for (size_t i = 0; i < constants.head_sizes.size(); ++i) {
      const uint64_t size = constants.head_sizes[i];
      heads.push_back(
          {size, std::numeric_limits<uint64_t>::max() / size, hash.first_slot.value() + constants.head_offsets[i]});
    }
    const uint64_t first_head = add(heads);
    places.emplace_back(first_head, add(constants.multipliers));
  }
  PLEIAD_ASSIGN_OR_RETURN(made.constants_, AllocateDevice("constants of the row hash", host.size()));
  if (!host.empty()) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(
        cudaMemcpy(made.constants_.data(), host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy of hashes"));
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    HashArgs args;
    args.heads = reinterpret_cast<const HashHead*>(made.constants_.data() + places[i].first);
    args.multipliers = reinterpret_cast<const uint64_t*>(made.constants_.data() + places[i].second);
    args.context_len = hashes[i].hasher.context_len();
    args.heads_per_ngram = hashes[i].hasher.heads_per_ngram();
    args.eos_token_id = hashes[i].hasher.eos_token_id();
    made.args_.push_back(args);
  }
  return made;
}

HashArgs HashArgsOf(const HashArgs& of_layer, const PlanImageLayout& layout, const PlanImageCounts& counts,
                    uint32_t num_tokens, const PinnedMemoryBlock& image, const DeviceMemoryBlock& device_image,
                    const DeviceMemoryBlock& rows) {
  constexpr uint64_t kPiece = sizeof(uint4);
  HashArgs args = of_layer;
  args.places = reinterpret_cast<const uint32_t*>(image.data() + layout.hash_places);
  args.ids = reinterpret_cast<const uint32_t*>(image.data() + layout.hash_ids);
  args.num_tokens = num_tokens;
  args.rows = rows.As<uint32_t>();
  args.image = image.As<const uint4>();
  args.device_image = device_image.As<uint4>();
  args.pieces = static_cast<uint32_t>((layout.items + counts.items * sizeof(ChainItem)) / kPiece);
  args.moves_at = static_cast<uint32_t>(layout.moves / kPiece);
  args.moves = static_cast<uint32_t>(counts.moves * sizeof(UndoMove) / kPiece);
  return args;
}

}  // namespace pleiad::cuda
