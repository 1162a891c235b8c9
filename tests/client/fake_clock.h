// A clock of the client library that tests move.
#pragma once

#include <chrono>
#include <future>
#include <set>
#include <thread>
#include <utility>

#include "client/internal/clock.h"

namespace pleiad::client::testing {

// Thread-safe.
class FakeClock final : public internal::Clock {
 public:
  absl::Time Now() const override {
    internal::MutexLock lock(&mutex_);
    return now_;
  }

  void WaitUntil(internal::CondVar* cv, internal::Mutex* mutex, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    {
      internal::MutexLock lock(&mutex_);
      if (now_ >= deadline) return;
      waiters_.insert({cv, mutex});
      deadline_ = deadline;
      waiting_.NotifyAll();
    }
    cv->Wait(mutex);
    internal::MutexLock lock(&mutex_);
    waiters_.erase(waiters_.find({cv, mutex}));
  }

  // Blocks until somebody waits who began to last for `deadline`.
  void AwaitDeadline(absl::Time deadline) {
    internal::MutexLock lock(&mutex_);
    while (waiters_.empty() || deadline_ != deadline) waiting_.Wait(&mutex_);
  }

  // Blocks until somebody waits who began to last for a time from `first` to `last`; returns that time.
  absl::Time AwaitDeadline(absl::Time first, absl::Time last) {
    internal::MutexLock lock(&mutex_);
    while (waiters_.empty() || deadline_ < first || deadline_ > last) waiting_.Wait(&mutex_);
    return deadline_;
  }

  // Moves the time and wakes every waiter.
  void Advance(absl::Duration by) {
    std::multiset<std::pair<internal::CondVar*, internal::Mutex*>> waiters;
    {
      internal::MutexLock lock(&mutex_);
      now_ += by;
      waiters = waiters_;
    }
    for (const auto& [cv, mutex] : waiters) {
      internal::MutexLock lock(mutex);
      cv->NotifyAll();
    }
  }

  // Moves the time on until `future` has its value.
  template <typename T>
  T AdvanceUntil(std::future<T> future, absl::Duration step) {
    while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      Advance(step);
      std::this_thread::yield();
    }
    return future.get();
  }

 private:
  mutable internal::Mutex mutex_;
  internal::CondVar waiting_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::multiset<std::pair<internal::CondVar*, internal::Mutex*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::client::testing
