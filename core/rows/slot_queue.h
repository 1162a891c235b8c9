// First-in-first-out queues of slots, doubly linked through arrays: every operation is O(1) and allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace pleiad {

inline constexpr uint32_t kNoSlot = 0xFFFFFFFFu;

// One link a slot, shared by all queues of a policy: a slot is in at most one of them.
struct SlotLink {
  uint32_t older = kNoSlot;
  uint32_t newer = kNoSlot;
};

// `links`, indexed by slot, outlives the queue.
class SlotQueue {
 public:
  explicit SlotQueue(std::vector<SlotLink>* links) : links_(*links) {}

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  uint32_t oldest() const { return oldest_; }                             // kNoSlot when empty
  uint32_t NewerThan(uint32_t slot) const { return links_[slot].newer; }  // kNoSlot of the newest

  // `slot` is in no queue.
  void Push(uint32_t slot) {
    links_[slot] = {newest_, kNoSlot};
    (newest_ == kNoSlot ? oldest_ : links_[newest_].newer) = slot;
    newest_ = slot;
    ++size_;
  }

  // `slot` is in this queue.
  void Remove(uint32_t slot) {
    const SlotLink link = links_[slot];
    (link.older == kNoSlot ? oldest_ : links_[link.older].newer) = link.newer;
    (link.newer == kNoSlot ? newest_ : links_[link.newer].older) = link.older;
    --size_;
  }

 private:
  std::vector<SlotLink>& links_;
  uint32_t oldest_ = kNoSlot;
  uint32_t newest_ = kNoSlot;
  uint32_t size_ = 0;
};

}  // namespace pleiad
