// What every home checks before it touches memory. A plan that fails is a fault of ours.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "core/base/plan.h"
#include "core/device/device.h"

namespace pleiad {

// What does not fit, as CreateCpuDevice says. Defined beside DeviceOptions::Validate.
absl::Status CheckDevice(const DeviceOptions& options, const std::vector<LayerWeights>& weights);

// Internal naming the field, its value and the rule. Reads every index once, nothing else. Tensors may lie in host
// memory, or also in the device's own where `memory` says so.
absl::Status CheckPlan(const DeviceOptions& options, size_t layers, TensorMemory memory, const BatchPlan& plan);
absl::Status CheckCarry(const DeviceOptions& options, CarrySlot carry, const RingView& ring);

// As Device::SaveCarry says of `values`.
absl::Status CheckWholeCarry(const DeviceOptions& options, CarrySlot carry, size_t values);

}  // namespace pleiad
