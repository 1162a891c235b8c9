// What every home checks of a plan before it touches memory. A plan that fails is a fault of ours.
#pragma once

#include "absl/status/status.h"
#include "core/base/plan.h"
#include "core/device/device.h"

namespace pleiad {

// Internal naming the field, its value and the rule. Reads every index once, nothing else.
absl::Status CheckPlan(const DeviceOptions& options, const BatchPlan& plan);
absl::Status CheckCarry(const DeviceOptions& options, CarrySlot carry, const RingView& ring);

}  // namespace pleiad
