// Pinned places through which the rows of carries enter and leave the device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/strong_id.h"
#include "core/device/cuda/owners.h"

namespace pleiad::cuda {

// Used in turn. Whoever takes one waits until the ticket that used it last is done.
class CarryIo {
 public:
  struct Place {
    float* rows = nullptr;  // [state_len, C]
    Event done;
    Ticket last;  // 0: never used
  };

  static absl::StatusOr<CarryIo> Create(uint32_t places, uint64_t bytes_per_place);

  uint32_t Next() { return next_ = (next_ + 1) % static_cast<uint32_t>(places_.size()); }
  Place& at(uint32_t index) { return places_[index]; }
  uint64_t place_bytes() const { return memory_.size() / places_.size(); }
  uint64_t pinned_bytes() const { return memory_.size(); }

 private:
  PinnedMemoryBlock memory_;
  std::vector<Place> places_;
  uint32_t next_ = 0;
};

}  // namespace pleiad::cuda
