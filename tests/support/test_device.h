// The device that the tests run on.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device.h"
#include "tests/support/device_choice.h"

namespace pleiad::testing {

// CreateCpuDevice or CreateCudaDevice. There is no falling back.
absl::StatusOr<std::unique_ptr<Device>> CreateTestDevice(const DeviceOptions& options,
                                                         std::vector<LayerWeights> weights,
                                                         TestDevice which = ChosenTestDevice());

}  // namespace pleiad::testing
