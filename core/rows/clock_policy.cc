#include "core/rows/clock_policy.h"

namespace pleiad {

void ClockPolicy::Inserted(uint32_t slot, uint64_t) { uses_[slot] = 0; }

void ClockPolicy::Removed(uint32_t slot) { uses_[slot] = kVacant; }

std::optional<uint32_t> ClockPolicy::Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) {
  const uint32_t slots = uses_.size();
  if (slots == 0) return std::nullopt;
  while (*steps > 0) {
    --*steps;
    const uint32_t slot = hand_;
    hand_ = slot + 1 == slots ? 0 : slot + 1;
    uint8_t& uses = uses_[slot];
    if (uses == kVacant) continue;
    if (uses > 0) {
      --uses;
    } else if (evictable(slot)) {
      uses = kVacant;
      return slot;
    }
  }
  return std::nullopt;
}

}  // namespace pleiad
