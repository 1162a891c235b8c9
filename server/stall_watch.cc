#include "server/stall_watch.h"

#include <utility>
#include <vector>

#include "server/read_progress.h"

namespace pleiad {

absl::Duration UnaryReadPatience(uint64_t bytes) {
  constexpr uint64_t kSlowBytesPerSecond = 8 << 20;
  return ReadProgress::kPatience + absl::Seconds(static_cast<double>(bytes) / kSlowBytesPerSecond);
}

StallWatch::StallWatch(Admission* admission, Clock* clock) : admission_(admission), clock_(clock) {
  admission_->NotifyWhenFull([this] {
    MutexLock lock(&mutex_);
    if (std::exchange(full_, true)) return;
    changed_.NotifyAll();
  });
  thread_ = std::thread([this] { Run(); });
}

StallWatch::~StallWatch() {
  admission_->NotifyWhenFull(nullptr);
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void StallWatch::Add(const std::shared_ptr<StallableCall>& call) {
  MutexLock lock(&mutex_);
  calls_.emplace(call.get(), call);
}

void StallWatch::Remove(const StallableCall* call) {
  MutexLock lock(&mutex_);
  calls_.erase(call);
}

void StallWatch::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (!full_) {
      changed_.Wait(&mutex_);
      continue;
    }
    const absl::Time next = clock_->Now() + kPeriod;
    while (!stopping_ && clock_->Now() < next) clock_->WaitUntil(&changed_, &mutex_, next);
    if (stopping_) return;
    full_ = false;
    std::vector<std::shared_ptr<StallableCall>> calls;
    for (const auto& [key, call] : calls_) {
      if (auto live = call.lock()) calls.push_back(std::move(live));
    }
    mutex_.Unlock();
    for (const auto& call : calls) call->CancelIfStalled(clock_->Now());
    calls.clear();
    const bool still_full = admission_->OthersAreWaitedFor();
    mutex_.Lock();
    full_ = full_ || still_full;
  }
}

}  // namespace pleiad
