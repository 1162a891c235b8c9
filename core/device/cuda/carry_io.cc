#include "core/device/cuda/carry_io.h"

#include <utility>

#include "core/base/status_macros.h"

namespace pleiad::cuda {

absl::StatusOr<CarryIo> CarryIo::Create(uint32_t places, uint64_t bytes_per_place) {
  CarryIo io;
  PLEIAD_ASSIGN_OR_RETURN(io.memory_, AllocatePinned("pinned carries", places * bytes_per_place));
  for (uint32_t i = 0; i < places; ++i) {
    Place place;
    if (bytes_per_place > 0) place.rows = reinterpret_cast<float*>(io.memory_.data() + i * bytes_per_place);
    PLEIAD_ASSIGN_OR_RETURN(place.done, MakeEvent(EventTiming::kOff));
    io.places_.push_back(std::move(place));
  }
  return io;
}

}  // namespace pleiad::cuda
