// Accuracy at the released geometry, by every way the projection may go.
#include <gtest/gtest.h>

#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

TEST(AccuracyTest, ReleasedGeometryIsWithinItsBounds) {
  constexpr uint32_t kTokens = 60;
  const oracle::Model model = MakeModel({.hidden = 2560, .embed = 2560, .heads_per_ngram = 8}, 81);
  StageRig rig = RandomRig(model, kTokens, 82);
  const oracle::Trace exact = rig.Oracle(0, kTokens, oracle::KvRounding::kNone);
  const oracle::Trace rounded = rig.Oracle(0, kTokens, oracle::KvRounding::kBf16);
  RigCarry carry = rig.NewCarry();
  for (const std::vector<uint32_t>& cut : {std::vector<uint32_t>{60}, std::vector<uint32_t>{30, 1, 4, 1, 15, 9}}) {
    carry.ring = {};
    const std::vector<float> out = rig.RunCut(&carry, 0, cut);
    EXPECT_LE(oracle::RelativeL2(out, exact.delta), 2.3e-3);
    EXPECT_LE(oracle::RelativeL2(out, rounded.delta), 3e-4);
    EXPECT_LE(oracle::RelativeL2(rig.ReadRows(carry), oracle::ConvRowsAt(model, rounded, kTokens)), 3e-4);
  }
}

}  // namespace
}  // namespace pleiad
