// A thread that waits for its next work awake, while work comes often: what it works on stays in its caches, and
// nobody has to wake it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace pleiad {

// Thread-safe. Sleeps until work is offered twice within `spin`, then spins until none has come for as long.
class SpinningThread {
 public:
  // Not started: takes nothing.
  explicit SpinningThread(Clock* clock) : clock_(clock) {}
  // Finishes what it was given. Nobody offers any more.
  ~SpinningThread();
  SpinningThread(const SpinningThread&) = delete;
  SpinningThread& operator=(const SpinningThread&) = delete;

  // Once, before any TryRun; zero: as not started.
  void Start(absl::Duration spin);

  bool started() const { return spin_ > absl::ZeroDuration(); }

  // Whether it runs `work`, which is empty then. Else nothing has happened to it: the thread sleeps or is at work.
  bool TryRun(std::function<void()>& work) ABSL_LOCKS_EXCLUDED(mutex_);

  bool spins() const { return state_.load(std::memory_order_relaxed) == State::kSpins; }

 private:
  // Spins -> Taken -> Given -> Works -> Spins; Spins -> Sleeps -> Spins.
  enum class State : uint8_t { kSleeps, kSpins, kTaken, kGiven, kWorks };

  void WakeIfOften() ABSL_LOCKS_EXCLUDED(mutex_);
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until it falls asleep or the thread is to end.
  void Spin() ABSL_LOCKS_EXCLUDED(mutex_);

  Clock* const clock_;
  absl::Duration spin_;  // zero until it is started
  std::atomic<State> state_{State::kSleeps};
  std::function<void()> work_;  // of whoever made the state what it is
  std::atomic<bool> exit_{false};

  Mutex mutex_;
  CondVar woken_;                                                         // no longer sleeps, or is to end
  absl::Time last_offer_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // while it slept

  std::thread thread_;
};

}  // namespace pleiad
