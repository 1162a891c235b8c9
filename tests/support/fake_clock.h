// A clock that tests move.
#pragma once

#include <set>
#include <utility>

#include "core/base/clock.h"

namespace pleiad {

// Thread-safe.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }

  void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    {
      MutexLock lock(&mutex_);
      if (now_ >= deadline) return;
      waiters_.insert({cv, mutex});
      last_wait_ = moves_;
      waiting_.NotifyAll();
    }
    cv->Wait(mutex);
    MutexLock lock(&mutex_);
    waiters_.erase(waiters_.find({cv, mutex}));
  }

  // Blocks until somebody waits for this clock.
  void AwaitWaiter() {
    MutexLock lock(&mutex_);
    while (waiters_.empty()) waiting_.Wait(&mutex_);
  }

  // Blocks until somebody has begun to wait since the time was moved last: whoever acts on the time has acted.
  void AwaitWaiterAnew() {
    MutexLock lock(&mutex_);
    while (last_wait_ != moves_) waiting_.Wait(&mutex_);
  }

  // Moves the time and wakes every waiter.
  void Advance(absl::Duration by) {
    std::multiset<std::pair<CondVar*, Mutex*>> waiters;
    {
      MutexLock lock(&mutex_);
      now_ += by;
      ++moves_;
      waiters = waiters_;
    }
    for (const auto& [cv, mutex] : waiters) {
      MutexLock lock(mutex);
      cv->NotifyAll();
    }
  }

 private:
  mutable Mutex mutex_;
  CondVar waiting_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  uint64_t moves_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_wait_ ABSL_GUARDED_BY(mutex_) = 0;  // moves before the last wait began
  std::multiset<std::pair<CondVar*, Mutex*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
