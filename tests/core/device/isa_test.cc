// Every path of the projection against the oracle and against the others.
#include "core/device/cpu/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/device/stage_rig.h"
#include "tests/support/cpu_device_test.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

StageRig MakeRig(const std::string& isa, bool batch_invariant = false) {
  DeviceOptions options;
  options.cpu_isa = isa;
  options.batch_invariant = batch_invariant;
  options.threads = 2;
  return RandomRig(MakeModel({.hidden = 72, .embed = 200}, 61), 130, 62, options);
}

class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (testing::ChosenTestDevice() != testing::TestDevice::kCpu) GTEST_SKIP() << "concerns the CPU device alone";
    if (GetParam() > DetectIsa()) GTEST_SKIP() << "this processor has no " << Name(GetParam());
  }
};

TEST_P(IsaTest, AgreesWithTheOracleAndThePortableLoop) {
  StageRig rig = MakeRig(Name(GetParam()));
  StageRig portable = MakeRig("portable");
  const std::vector<double> exact = rig.Oracle(0, 130).delta;
  for (const std::vector<uint32_t>& cut :
       {std::vector<uint32_t>{130}, std::vector<uint32_t>(130, 1), std::vector<uint32_t>{3, 40, 5, 17, 65}}) {
    RigCarry carry;
    carry.slot = CarrySlot(0);
    const std::vector<float> out = rig.RunCut(&carry, 0, cut);
    carry.ring = {};
    const std::vector<float> peer = portable.RunCut(&carry, 0, cut);
    EXPECT_LE(oracle::RelativeL2(out, exact), 3e-4);
    EXPECT_LE(oracle::RelativeL2(out, std::vector<double>(peer.begin(), peer.end())), 3e-4);
  }
}

TEST_P(IsaTest, BatchInvariantIsBitEqualAcrossBatchSizes) {
  StageRig rig = MakeRig(Name(GetParam()), true);
  RigCarry carry = rig.NewCarry();
  const std::vector<float> whole = rig.RunCut(&carry, 0, {130});
  for (const std::vector<uint32_t>& cut :
       {std::vector<uint32_t>(130, 1), std::vector<uint32_t>(65, 2), std::vector<uint32_t>{3, 40, 5, 17, 65}}) {
    carry.ring = {};
    EXPECT_EQ(rig.RunCut(&carry, 0, cut), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, IsaTest, ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& param) { return Name(param.param); });

class IsaDetailTest : public testing::CpuDeviceTest {};

TEST_F(IsaDetailTest, TheDeviceSaysWhichPathRuns) {
  EXPECT_THAT(MakeRig("portable").device().info().detail, HasSubstr("dot loop (portable) for every batch"));
  if (DetectIsa() < Isa::kAvx2) GTEST_SKIP() << "portable only";
  EXPECT_THAT(MakeRig("avx2").device().info().detail, HasSubstr("oneDNN sgemm on FP32 panels"));
  EXPECT_THAT(MakeRig("avx2", true).device().info().detail, HasSubstr("dot loop (avx2) for every batch"));
  EXPECT_EQ(MakeRig("avx2").device().info().name, "cpu");
}

}  // namespace
}  // namespace pleiad
