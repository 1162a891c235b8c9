// What one batch in flight has to itself: its plan in pinned memory and on the device, its tensors, events and graphs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/strong_id.h"
#include "core/device/cuda/owners.h"
#include "core/device/cuda/plan_image.h"
#include "core/device/cuda/tensor_staging.h"

namespace pleiad::cuda {

struct BatchSlot {
  // Rewritten only when `last` is done.
  PinnedMemoryBlock image;
  DeviceMemoryBlock device_image;
  DeviceMemoryBlock hashed_rows;  // GatherIndex bits [max_tokens, heads]; empty where plans name places alone
  TensorStaging tensors;

  Event uploaded;  // on the upload stream; this, `begun` and `computed` with times
  Event begun;     // before what finds its rows, else on the compute stream behind the upload
  // For every other batch of the slot, so that one is still there when the next batch elsewhere is done.
  std::array<Event, 2> computed;
  uint32_t turn = 0;  // the one of the last batch
  Event done;         // on the download stream

  std::vector<std::vector<GraphExec>> graphs;  // [layers][buckets]; empty where they could not be made

  Ticket last;  // 0: never used

  static absl::StatusOr<BatchSlot> Create(const PlanShape& shape, uint32_t max_tokens, uint32_t image_tokens,
                                          PlanRows rows);
};

}  // namespace pleiad::cuda
