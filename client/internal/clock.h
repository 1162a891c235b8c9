// Monotonic time that tests can replace.
#pragma once

#include "absl/time/time.h"
#include "client/internal/mutex.h"

namespace pleiad::client::internal {

// Thread-safe. Times of one clock compare with each other only.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back.
  virtual absl::Time Now() const = 0;

  // Waits on `cv`, which belongs to `mutex`, until it is notified or Now() reaches `deadline`; may wake earlier. The
  // caller holds `mutex`, which is released while waiting.
  virtual void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The system's monotonic clock; lives for ever.
  static Clock* Real();
};

}  // namespace pleiad::client::internal
