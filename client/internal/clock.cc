#include "client/internal/clock.h"

#include <algorithm>
#include <chrono>

namespace pleiad::client::internal {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const absl::Duration wait = std::clamp(deadline - Now(), absl::ZeroDuration(), absl::Hours(1));
    cv->WaitUntil(mutex, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(wait));
  }
};

}  // namespace

Clock* Clock::Real() {
  static auto* const clock = new RealClock;
  return clock;
}

}  // namespace pleiad::client::internal
