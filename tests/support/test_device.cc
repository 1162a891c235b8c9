#include "tests/support/test_device.h"

#include <utility>

namespace pleiad::testing {

absl::StatusOr<std::unique_ptr<Device>> CreateTestDevice(const DeviceOptions& options,
                                                         std::vector<LayerWeights> weights, TestDevice which) {
  return which == TestDevice::kCuda ? CreateCudaDevice(options, std::move(weights))
                                    : CreateCpuDevice(options, std::move(weights));
}

}  // namespace pleiad::testing
