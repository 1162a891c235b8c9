#include "core/base/clock.h"

#include <chrono>

namespace pleiad {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::FromUnixNanos(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }

  void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (deadline == absl::InfiniteFuture()) {
      cv->Wait(mutex);
      return;
    }
    cv->WaitUntil(mutex, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(absl::ToUnixNanos(deadline))));
  }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;
  return clock;
}

}  // namespace pleiad
