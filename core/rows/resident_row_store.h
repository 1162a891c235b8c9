// The whole table in the arena: slot = first slot of the layer + row. Nothing misses, nothing is held.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_reader.h"
#include "core/rows/row_store.h"

namespace pleiad {

struct LoadProgress {
  uint64_t bytes_read = 0;
  uint64_t bytes_total = 0;
  double bytes_per_second = 0;
};

struct ResidentLoadOptions {
  // Writes consecutive arena rows; called from several threads at disjoint slots (Device::WriteArena).
  std::function<absl::Status(Slot first, absl::Span<const std::byte> rows)> write_arena;
  // Called a few times a second at most, from one thread at a time; may be empty.
  std::function<void(const LoadProgress&)> on_progress;
  // Polled between reads; true stops the load with Cancelled. May be empty.
  std::function<bool()> cancelled;
  uint32_t threads = 2;
};

// Slots the tables of `checkpoint` need together. InvalidArgument when they pass GatherIndex::kLimit.
absl::StatusOr<uint64_t> ResidentSlots(const Checkpoint& checkpoint);

// Reads every row once, in file order, and writes it to the arena in the arena's format. DataLoss naming file and
// offset when a read fails.
absl::StatusOr<std::unique_ptr<RowStore>> LoadResidentRowStore(const Checkpoint& checkpoint, RowReader& reader,
                                                               const ResidentLoadOptions& options);

}  // namespace pleiad
