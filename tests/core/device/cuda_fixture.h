// Tests of the CUDA device: skipped where there is no GPU. With PLEIAD_TEST_STAND_IN=cpu the CPU device stands in for
// it, so that the tests can be tried anywhere.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/device/device.h"
#include "tests/support/device_choice.h"

namespace pleiad {

inline bool CpuStandsIn() {
  const char* value = std::getenv("PLEIAD_TEST_STAND_IN");
  return value != nullptr && std::string(value) == "cpu";
}

inline testing::TestDevice DeviceUnderTest() {
  return CpuStandsIn() ? testing::TestDevice::kCpu : testing::TestDevice::kCuda;
}

// `Base` is a gtest fixture. Devices are made after SetUp, in the test.
template <typename Base>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (CpuStandsIn()) return;
    const absl::StatusOr<CudaGpu> gpu = FindCudaGpu(0);
    if (gpu.ok()) return;
    if (testing::ChosenTestDevice() == testing::TestDevice::kCuda) FAIL() << gpu.status();
    GTEST_SKIP() << "no GPU: " << gpu.status().message();
  }
};

}  // namespace pleiad
