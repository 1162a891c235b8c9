#include "server/spinning_thread.h"

#include <utility>

namespace pleiad {
namespace {

// Lets the other thread of the core run meanwhile.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

SpinningThread::~SpinningThread() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    exit_.store(true);
    woken_.NotifyAll();
  }
  thread_.join();
}

void SpinningThread::Start(absl::Duration spin) {
  if (spin <= absl::ZeroDuration()) return;
  spin_ = spin;
  thread_ = std::thread([this] { Loop(); });
}

bool SpinningThread::TryRun(std::function<void()>& work) {
  State state = State::kSpins;
  if (!state_.compare_exchange_strong(state, State::kTaken)) {
    if (state == State::kSleeps && started()) WakeIfOften();
    return false;
  }
  work_ = std::exchange(work, nullptr);
  state_.store(State::kGiven);
  return true;
}

void SpinningThread::WakeIfOften() {
  MutexLock lock(&mutex_);
  if (state_.load() != State::kSleeps) return;
  const absl::Time now = clock_->Now();
  const bool often = now - last_offer_ < spin_;
  last_offer_ = now;
  if (!often) return;
  state_.store(State::kSpins);
  woken_.NotifyAll();
}

void SpinningThread::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (!exit_.load() && state_.load() == State::kSleeps) woken_.Wait(&mutex_);
    }
    Spin();
    if (exit_.load()) return;
  }
}

void SpinningThread::Spin() {
  absl::Time last = clock_->Now();
  while (true) {
    State state = state_.load();
    if (state == State::kGiven) {
      state_.store(State::kWorks);
      std::exchange(work_, nullptr)();
      last = clock_->Now();
      state_.store(State::kSpins);
    } else if (state == State::kSleeps) {
      return;
    } else if (state == State::kSpins && (exit_.load() || clock_->Now() - last >= spin_)) {
      if (state_.compare_exchange_strong(state, State::kSleeps)) return;
    } else {
      Pause();
    }
  }
}

}  // namespace pleiad
