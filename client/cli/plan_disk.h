// How fast the rows of a checkpoint can be read at random.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_reader.h"

namespace pleiad::cli {

struct DiskRate {
  uint32_t depth = 0;  // reads in flight
  uint64_t reads = 0;
  double reads_per_second = 0;
};

// Keeps `depth` (at least 1) reads of random rows of all layers in flight for `time`. Blocks. What a read failed with.
absl::StatusOr<DiskRate> MeasureReads(const Checkpoint& checkpoint, RowReader* reader, uint32_t depth,
                                      std::chrono::steady_clock::duration time);

}  // namespace pleiad::cli
