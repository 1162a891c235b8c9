// An eviction policy that is wrong on purpose.
#pragma once

#include <cstdint>
#include <optional>

#include "core/rows/eviction_policy.h"

namespace pleiad {

// Ignores what may be evicted: as if plans held nothing.
class HoldsNothing : public EvictionPolicy {
 public:
  explicit HoldsNothing(uint32_t slots) : EvictionPolicy(slots), slots_(slots) {}
  const char* name() const override { return "holds nothing"; }
  void Inserted(uint32_t, uint64_t) override {}
  void Removed(uint32_t) override {}
  std::optional<uint32_t> Evict(absl::FunctionRef<bool(uint32_t)>, uint32_t* steps) override {
    --*steps;
    return next_++ % slots_;
  }

 private:
  const uint32_t slots_;
  uint32_t next_ = 0;
};

}  // namespace pleiad
