// --device as the tests choose it.
#pragma once

#include "server/flags.h"
#include "tests/support/device_choice.h"

namespace pleiad::testing {

inline DeviceFlag TestDeviceFlag() {
  return ChosenTestDevice() == TestDevice::kCuda ? DeviceFlag::kCuda : DeviceFlag::kCpu;
}

}  // namespace pleiad::testing
