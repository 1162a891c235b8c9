#include "core/rows/s3fifo_policy.h"

namespace pleiad {

S3FifoPolicy::S3FifoPolicy(uint32_t slots)
    : EvictionPolicy(slots),
      small_target_(SmallTarget(slots)),
      links_(slots),
      tags_(slots),
      small_(&links_),
      main_(&links_),
      ghosts_(GhostWindow(slots)) {}

void S3FifoPolicy::Inserted(uint32_t slot, uint64_t key) {
  const uint32_t hash = GhostTable::Hash(key);
  tags_[slot] = ghosts_.Take(hash) ? hash | kInMain : hash;
  uses_[slot] = 0;
  QueueOf(slot).Push(slot);
}

void S3FifoPolicy::Removed(uint32_t slot) { Vacate(slot); }

void S3FifoPolicy::Vacate(uint32_t slot) {
  QueueOf(slot).Remove(slot);
  uses_[slot] = kVacant;
}

std::optional<uint32_t> S3FifoPolicy::Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) {
  // Slots passed over in a row, so that a queue in which nothing can go does not hide the other one.
  uint32_t passed_small = 0;
  uint32_t passed_main = 0;
  while (*steps > 0 && !(small_.empty() && main_.empty())) {
    const bool small_stuck = passed_small >= small_.size();
    const bool main_stuck = passed_main >= main_.size();
    if (small_stuck && main_stuck) passed_small = passed_main = 0;
    const bool from_small = small_stuck != main_stuck ? main_stuck : small_.size() >= small_target_ || main_.empty();
    --*steps;
    SlotQueue& queue = from_small ? small_ : main_;
    const uint32_t slot = queue.oldest();
    uint8_t& uses = uses_[slot];
    if (from_small && uses >= kPromoteUses) {
      small_.Remove(slot);
      tags_[slot] |= kInMain;
      uses = 0;
      main_.Push(slot);
      continue;
    }
    if (!from_small && uses > 0) {
      --uses;
    } else if (evictable(slot)) {
      if (from_small) ghosts_.Put(tags_[slot]);
      Vacate(slot);
      return slot;
    } else {
      ++(from_small ? passed_small : passed_main);
    }
    queue.Remove(slot);
    queue.Push(slot);
  }
  return std::nullopt;
}

}  // namespace pleiad
