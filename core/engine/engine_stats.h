// Counters of the engine as a plain snapshot; the server exports them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/histogram.h"
#include "core/device/device.h"
#include "core/rows/row_store.h"

namespace pleiad {

struct EngineStats {
  std::vector<uint64_t> tokens;  // [layers], committed
  TokenHistogram batch_tokens;
  DurationHistogram queue, resolve, device;
  uint64_t sequences = 0;  // open now
  uint64_t sequences_opened = 0;
  uint64_t closed_released = 0, closed_expired = 0, closed_stopped = 0;
  uint64_t prestage_used = 0, prestage_partly_used = 0, prestage_dropped = 0, prestage_yielded = 0;
  uint64_t steps_in_flight = 0;
  RowStoreStats rows;
  DeviceStats device_work;
};

}  // namespace pleiad
