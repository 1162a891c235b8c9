#include "core/device/cuda/batch_slot.h"

#include <algorithm>

#include "core/base/status_macros.h"

namespace pleiad::cuda {

absl::StatusOr<BatchSlot> BatchSlot::Create(const PlanShape& shape, uint32_t max_tokens, uint32_t image_tokens,
                                            PlanRows rows) {
  BatchSlot slot;
  const uint64_t bytes =
      std::max(PlanImageLayout(shape, image_tokens).bytes, PlanImageLayout(shape, image_tokens, rows).bytes);
  if (rows == PlanRows::kTokens) {
    PLEIAD_ASSIGN_OR_RETURN(
        slot.hashed_rows,
        AllocateDevice("rows that are found", uint64_t{max_tokens} * shape.geometry.heads() * sizeof(uint32_t)));
  }
  PLEIAD_ASSIGN_OR_RETURN(slot.image, AllocatePinned("plan", bytes));
  PLEIAD_ASSIGN_OR_RETURN(slot.device_image, AllocateDevice("plan", bytes));
  PLEIAD_ASSIGN_OR_RETURN(slot.tensors, TensorStaging::Create(shape.geometry, max_tokens));
  PLEIAD_ASSIGN_OR_RETURN(slot.uploaded, MakeEvent(EventTiming::kOn));
  PLEIAD_ASSIGN_OR_RETURN(slot.begun, MakeEvent(EventTiming::kOn));
  for (Event& event : slot.computed) {
    PLEIAD_ASSIGN_OR_RETURN(event, MakeEvent(EventTiming::kOn));
  }
  PLEIAD_ASSIGN_OR_RETURN(slot.done, MakeEvent(EventTiming::kOff));
  return slot;
}

}  // namespace pleiad::cuda
