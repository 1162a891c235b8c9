// Which device the tests run on: PLEIAD_TEST_DEVICE=cpu or cuda; cpu where it is not set.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace pleiad::testing {

inline constexpr char kDeviceVariable[] = "PLEIAD_TEST_DEVICE";

enum class TestDevice : uint8_t { kCpu, kCuda };

// Aborts on any other name. That there is such a device is for whoever makes one to find out.
inline TestDevice ChosenTestDevice() {
  const char* value = std::getenv(kDeviceVariable);
  const std::string name = value == nullptr ? "" : value;
  if (name.empty() || name == "cpu") return TestDevice::kCpu;
  if (name == "cuda") return TestDevice::kCuda;
  std::fprintf(stderr, "%s = '%s': must be cpu or cuda\n", kDeviceVariable, name.c_str());
  std::abort();
}

}  // namespace pleiad::testing
