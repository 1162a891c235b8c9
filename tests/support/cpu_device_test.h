// Tests of what the CPU device alone has: skipped where the tests run on another.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/device_choice.h"

namespace pleiad::testing {

class CpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (ChosenTestDevice() != TestDevice::kCpu) GTEST_SKIP() << "concerns the CPU device alone";
  }
};

}  // namespace pleiad::testing
