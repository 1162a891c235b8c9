#include "core/rows/sieve_policy.h"

namespace pleiad {

void SievePolicy::Inserted(uint32_t slot, uint64_t) {
  uses_[slot] = 0;
  queue_.Push(slot);
}

void SievePolicy::Removed(uint32_t slot) { Unlink(slot); }

void SievePolicy::Unlink(uint32_t slot) {
  if (hand_ == slot) hand_ = queue_.NewerThan(slot);
  queue_.Remove(slot);
  uses_[slot] = kVacant;
}

std::optional<uint32_t> SievePolicy::Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) {
  if (queue_.empty()) return std::nullopt;
  while (*steps > 0) {
    --*steps;
    const uint32_t slot = hand_ == kNoSlot ? queue_.oldest() : hand_;
    if (uses_[slot] == 0 && evictable(slot)) {
      Unlink(slot);
      return slot;
    }
    uses_[slot] = 0;
    hand_ = queue_.NewerThan(slot);
  }
  return std::nullopt;
}

}  // namespace pleiad
