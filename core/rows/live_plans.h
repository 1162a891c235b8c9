// Which plans of steps are not enqueued yet. The caller serialises.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>

namespace pleiad {

class LivePlans {
 public:
  // Numbers ascend.
  void Begin(uint64_t number) {
    if (live_.empty()) first_ = number;
    live_.resize(number - first_, false);
    live_.push_back(true);
  }
  // Of a plan that is not live: nothing.
  void End(uint64_t number) {
    if (number < first_ || number - first_ >= live_.size()) return;
    live_[number - first_] = false;
    while (!live_.empty() && !live_.front()) {
      live_.pop_front();
      ++first_;
    }
  }
  // The greatest number there is when none is live.
  uint64_t oldest() const { return live_.empty() ? std::numeric_limits<uint64_t>::max() : first_; }

 private:
  std::deque<bool> live_;  // [number - first_]; the first is live
  uint64_t first_ = 0;
};

}  // namespace pleiad
