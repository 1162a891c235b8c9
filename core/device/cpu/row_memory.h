// Arena and staging: the rows of the table that are in memory, fills and the gather.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/host_memory.h"
#include "core/base/plan.h"
#include "core/base/thread_pool.h"
#include "core/device/device.h"

namespace pleiad {

class RowMemory {
 public:
  // `options` has passed Validate(). ResourceExhausted when memory cannot be had.
  static absl::StatusOr<RowMemory> Create(const DeviceOptions& options);

  StagingView staging() const;
  uint64_t arena_bytes() const { return arena_.size(); }
  uint64_t staging_bytes() const { return staging_.size(); }

  // From any threads at disjoint slots. OutOfRange past the arena, InvalidArgument on a part of a row.
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows);

  void Fill(absl::Span<const pleiad::Fill> fills, ThreadPool& pool);
  // Rows to BF16: out [gather.size(), head_dim]. FP8 rows are decoded with the layer's scale.
  void Gather(LayerOrdinal layer, absl::Span<const GatherIndex> gather, ThreadPool& pool, Bf16* out) const;

 private:
  RowMemory() = default;

  HostMemory arena_;
  HostMemory staging_;
  uint64_t arena_slots_ = 0;
  uint32_t staging_rows_ = 0;
  uint32_t row_bytes_ = 0;
  uint32_t head_dim_ = 0;
  std::vector<std::array<Bf16, 256>> decode_;  // [layers], FP8 only
};

}  // namespace pleiad
