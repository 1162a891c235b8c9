#include "core/device/cpu/row_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

// Rows one range copies: some tens of KB.
constexpr size_t kRowsPerRange = 128;

}  // namespace

absl::StatusOr<RowMemory> RowMemory::Create(const DeviceOptions& options) {
  RowMemory rows;
  rows.head_dim_ = options.geometry.head_dim();
  rows.row_bytes_ = rows.head_dim_ * static_cast<uint32_t>(ByteSize(options.row_dtype));
  rows.arena_slots_ = options.arena_slots;
  rows.staging_rows_ = options.staging_rows;
  PLEIAD_ASSIGN_OR_RETURN(rows.arena_,
                          HostMemory::Allocate("arena", rows.arena_slots_ * rows.row_bytes_, HugePages::kAdvise));
  PLEIAD_ASSIGN_OR_RETURN(
      rows.staging_, HostMemory::Allocate("staging", uint64_t{rows.staging_rows_} * rows.row_bytes_, HugePages::kNo));
  if (options.row_dtype == DType::kF8E4M3) {
    for (float scale : options.row_scales) rows.decode_.push_back(F8DecodeTable(scale));
  }
  return rows;
}

StagingView RowMemory::staging() const { return {staging_.data(), staging_rows_, row_bytes_}; }

absl::Status RowMemory::WriteArena(Slot first, absl::Span<const std::byte> rows) {
  if (rows.size() % row_bytes_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows = ", rows.size(), " bytes: not a multiple of the row's ", row_bytes_));
  }
  const uint64_t count = rows.size() / row_bytes_;
  if (first.value() > arena_slots_ || count > arena_slots_ - first.value()) {
    return absl::OutOfRangeError(
        absl::StrCat("slots [", first.value(), ", ", first.value() + count, ") pass the arena's ", arena_slots_));
  }
  if (count > 0) std::memcpy(arena_.data() + uint64_t{first.value()} * row_bytes_, rows.data(), rows.size());
  return absl::OkStatus();
}

void RowMemory::Fill(absl::Span<const pleiad::Fill> fills, ThreadPool& pool) {
  pool.ParallelFor(fills.size(), kRowsPerRange, [&](size_t, size_t begin, size_t end) {
    for (const pleiad::Fill& fill : fills.subspan(begin, end - begin)) {
      std::memcpy(arena_.data() + uint64_t{fill.slot.value()} * row_bytes_,
                  staging_.data() + uint64_t{fill.staging_row} * row_bytes_, row_bytes_);
    }
  });
}

void RowMemory::Gather(LayerOrdinal layer, absl::Span<const GatherIndex> gather, ThreadPool& pool, Bf16* out) const {
  const std::array<Bf16, 256>* decode = decode_.empty() ? nullptr : &decode_[layer.value()];
  pool.ParallelFor(gather.size(), kRowsPerRange, [&](size_t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const GatherIndex index = gather[i];
      const std::byte* row = (index.in_staging() ? staging_ : arena_).data() + uint64_t{index.row()} * row_bytes_;
      Bf16* to = out + i * head_dim_;
      if (decode == nullptr) {
        std::memcpy(to, row, row_bytes_);
      } else {
        for (uint32_t j = 0; j < head_dim_; ++j) to[j] = (*decode)[std::to_integer<uint8_t>(row[j])];
      }
    }
  });
}

}  // namespace pleiad
