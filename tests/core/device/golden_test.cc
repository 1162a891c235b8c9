// The golden cases through the Device interface.
#include <gtest/gtest.h>

#include <string>

#include "tests/core/device/stage_rig.h"
#include "tests/oracle/trace_file.h"

namespace pleiad {
namespace {

// FP64 values without the rounding of k and v, at tiny geometry; and with it.
constexpr double kGoldenBound = 3e-3;
constexpr double kOracleBound = 3e-4;

class DeviceGoldenTest : public ::testing::TestWithParam<std::pair<const char*, uint32_t>> {
 protected:
  std::string directory_ = std::string(PLEIAD_SOURCE_DIR "/tests/golden/") + GetParam().first;
  oracle::Model model_ = oracle::LoadModel(directory_, GetParam().second);
  oracle::TraceFile golden_{directory_ + "/golden.safetensors"};
  std::string layer_ = "layer" + std::to_string(GetParam().second) + ".";
};

TEST_P(DeviceGoldenTest, OutputsAndConvRowsAgreeWithTheReference) {
  StageRig rig(model_, golden_.Values(layer_ + "embeddings"), golden_.Values(layer_ + "highway_in"));
  RigCarry carry = rig.NewCarry();
  std::vector<float> out = rig.RunCut(&carry, 0, {30});
  const std::vector<float> conv = rig.ReadRows(carry);
  const std::vector<float> tail = rig.RunCut(&carry, 30, {31});
  out.insert(out.end(), tail.begin(), tail.end());
  EXPECT_LE(oracle::RelativeL2(out, golden_.Values(layer_ + "ple_out")), kGoldenBound);
  EXPECT_LE(oracle::RelativeL2(conv, golden_.Values(layer_ + "conv_after30")), kGoldenBound);

  const oracle::Trace rounded = rig.Oracle(0, 61);
  EXPECT_LE(oracle::RelativeL2(out, rounded.delta), kOracleBound);
  EXPECT_LE(oracle::RelativeL2(conv, oracle::ConvRowsAt(model_, rounded, 30)), kOracleBound);
}

TEST_P(DeviceGoldenTest, HighwayOutIsInputPlusDelta) {
  StageRig rig(model_, golden_.Values(layer_ + "embeddings"), golden_.Values(layer_ + "highway_in"));
  const std::vector<float> out = rig.RunOne({.count = 61}, {.kind = OutputKind::kHighway});
  EXPECT_LE(oracle::RelativeL2(out, rig.Oracle(0, 61).highway_out), kOracleBound);
}

TEST_P(DeviceGoldenTest, OneFlippedWeightIsNoticed) {
  model_.weights.conv[5] ^= 0x8000;
  model_.weights.value[7] ^= 0x4000;
  StageRig rig(model_, golden_.Values(layer_ + "embeddings"), golden_.Values(layer_ + "highway_in"));
  const std::vector<float> out = rig.RunOne({.count = 61});
  EXPECT_GT(oracle::RelativeL2(out, golden_.Values(layer_ + "ple_out")), kGoldenBound);
}

TEST_P(DeviceGoldenTest, TheCapturedGenerationInItsOwnSteps) {
  const std::string run = "run." + layer_;
  std::vector<double> embeddings;
  for (uint64_t id : oracle::HashTokens(model_.hash, model_.numbers, golden_.Tokens(run + "tokens"))) {
    const std::vector<double> row = model_.row(id);
    embeddings.insert(embeddings.end(), row.begin(), row.end());
  }
  StageRig rig(model_, embeddings, golden_.Values(run + "highway_in"));
  RigCarry carry = rig.NewCarry();
  const std::vector<float> out = rig.RunCut(&carry, 0, golden_.Tokens(run + "step_lengths"));
  EXPECT_LE(oracle::RelativeL2(out, golden_.Values(run + "ple_out")), kGoldenBound);
  EXPECT_LE(oracle::RelativeL2(out, rig.Oracle(0, 32).delta), kOracleBound);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceGoldenTest,
                         ::testing::Values(std::pair("tiny-n3h8", 2u), std::pair("tiny-n2h4-wide-embed", 1u)),
                         [](const auto& param) { return param.param.second == 2 ? "N3H8" : "N2H4"; });

}  // namespace
}  // namespace pleiad
