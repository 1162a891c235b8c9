// CLOCK: a hand goes round the slots, lowers the count of uses of each, and takes the first that has none left.
#pragma once

#include "core/rows/eviction_policy.h"

namespace pleiad {

class ClockPolicy : public EvictionPolicy {
 public:
  explicit ClockPolicy(uint32_t slots) : EvictionPolicy(slots) {}

  const char* name() const override { return "clock"; }
  void Inserted(uint32_t slot, uint64_t key) override;
  void Removed(uint32_t slot) override;
  std::optional<uint32_t> Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) override;

 private:
  uint32_t hand_ = 0;
};

}  // namespace pleiad
