// SIEVE (Zhang et al., NSDI 2024): rows stay in order of arrival; a hand goes from old to new, forgives each row that
// was used since it last came by, and takes the first that was not. New rows arrive behind it.
#pragma once

#include <vector>

#include "core/rows/eviction_policy.h"
#include "core/rows/slot_queue.h"

namespace pleiad {

class SievePolicy : public EvictionPolicy {
 public:
  explicit SievePolicy(uint32_t slots) : EvictionPolicy(slots), links_(slots), queue_(&links_) {}

  const char* name() const override { return "sieve"; }
  void Inserted(uint32_t slot, uint64_t key) override;
  void Removed(uint32_t slot) override;
  std::optional<uint32_t> Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) override;

 private:
  void Unlink(uint32_t slot);

  std::vector<SlotLink> links_;
  SlotQueue queue_;
  uint32_t hand_ = kNoSlot;  // the next candidate; kNoSlot: the oldest
};

}  // namespace pleiad
