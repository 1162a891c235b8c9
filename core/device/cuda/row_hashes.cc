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

}  // namespace pleiad::cuda
