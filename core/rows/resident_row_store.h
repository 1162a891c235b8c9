// The whole table in the arena: slot = first slot of the layer + row. Nothing misses, nothing is held.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/model/checkpoint.h"
#include "core/model/table_layout.h"
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
  // Called from the calling thread, a few times a second at most and once at the end; may be empty.
  std::function<void(const LoadProgress&)> on_progress;
  // Polled from the calling thread a few times a second, reads in flight or not; true stops the load with Cancelled.
  // May be empty.
  std::function<bool()> cancelled;
  // Threads that convert and write rows; each has three chunks, of which a reader of twice as many threads reads two
  // meanwhile.
  uint32_t threads = 2;
};

// Slots the tables of `checkpoint` need together. InvalidArgument when they pass GatherIndex::kLimit.
absl::StatusOr<uint64_t> ResidentSlots(const Checkpoint& checkpoint);

// Reads every row once, in file order, and writes it to the arena in the arena's format. Blocks. `reader` serves only
// the load, but outlives reads it still has when the load stops early. Returns
//   InvalidArgument  as ResidentSlots
//   DataLoss         naming file and offset, when a read fails
//   Cancelled        `cancelled` said so
//   what write_arena returned, when it failed
absl::StatusOr<std::unique_ptr<RowStore>> LoadResidentRowStore(const Checkpoint& checkpoint, RowReader& reader,
                                                               const ResidentLoadOptions& options);

// The slot of each table's first row, [layers].
std::vector<uint64_t> ResidentFirstSlots(absl::Span<const TableLayout* const> tables);
std::vector<uint64_t> ResidentFirstSlots(const Checkpoint& checkpoint);

// The same on tables alone, [layers]; they are not needed after the return.
absl::StatusOr<uint64_t> ResidentSlots(absl::Span<const TableLayout* const> tables);
absl::StatusOr<std::unique_ptr<RowStore>> LoadResidentRowStore(absl::Span<const TableLayout* const> tables,
                                                               RowReader& reader, const ResidentLoadOptions& options);

}  // namespace pleiad
