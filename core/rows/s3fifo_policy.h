// S3-FIFO (Yang et al., SOSP 2023): new rows enter a small queue; those used again there move on to the main one, the
// others leave soon and are remembered for a while: a row that comes back within that time enters the main queue.
#pragma once

#include <vector>

#include "core/rows/eviction_policy.h"
#include "core/rows/ghost_table.h"
#include "core/rows/slot_queue.h"

namespace pleiad {

class S3FifoPolicy : public EvictionPolicy {
 public:
  // The small queue's share of the slots, at least one slot.
  static constexpr uint32_t SmallTarget(uint32_t slots) { return slots < 20 ? 1 : slots / 10; }
  // Evicted rows remembered: as many as the main queue holds.
  static constexpr uint32_t GhostWindow(uint32_t slots) { return slots < 2 ? 0 : slots - SmallTarget(slots); }
  // Uses, the first not counted, that move a row from the small queue to the main one.
  static constexpr uint8_t kPromoteUses = 1;

  explicit S3FifoPolicy(uint32_t slots);

  const char* name() const override { return "s3fifo"; }
  void Inserted(uint32_t slot, uint64_t key) override;
  void Removed(uint32_t slot) override;
  std::optional<uint32_t> Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) override;

 private:
  static constexpr uint32_t kInMain = 0x80000000u;

  SlotQueue& QueueOf(uint32_t slot) { return (tags_[slot] & kInMain) != 0 ? main_ : small_; }
  void Vacate(uint32_t slot);

  const uint32_t small_target_;
  std::vector<SlotLink> links_;
  std::vector<uint32_t> tags_;  // hash of the key for the ghost table, and kInMain
  SlotQueue small_;
  SlotQueue main_;
  GhostTable ghosts_;
};

}  // namespace pleiad
