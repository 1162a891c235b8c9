// Deadlines of calls, on the monotonic clock: setting the clock of the machine neither ends nor prolongs them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "grpc/support/time.h"

namespace pleiad::client::internal {

inline gpr_timespec DeadlineIn(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(std::min(timeout, absl::Hours(24 * 365)));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

}  // namespace pleiad::client::internal
