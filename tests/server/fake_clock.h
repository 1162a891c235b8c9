// A clock that moves when the test says so.
#pragma once

#include <utility>
#include <vector>

#include "core/base/clock.h"

namespace pleiad {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }

  void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) override {
    {
      MutexLock lock(&mutex_);
      waiters_.emplace_back(cv, mutex);
      if (now_ >= deadline) return;
    }
    cv->Wait(mutex);
  }

  // Wakes everybody who waited. What they wait on must still exist.
  void Advance(absl::Duration duration) {
    std::vector<std::pair<CondVar*, Mutex*>> waiters;
    {
      MutexLock lock(&mutex_);
      now_ += duration;
      waiters.swap(waiters_);
    }
    for (const auto& [cv, mutex] : waiters) {
      MutexLock lock(mutex);
      cv->NotifyAll();
    }
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::vector<std::pair<CondVar*, Mutex*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
