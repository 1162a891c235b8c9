// Input and output formats, zeros, in place, odd addresses.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/device/stage_rig.h"
#include "tests/oracle/numbers.h"

namespace pleiad {
namespace {

std::vector<float> RoundAll(std::vector<float> values) {
  for (float& value : values) value = static_cast<float>(oracle::RoundToBf16(value));
  return values;
}

class FormatsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  FormatsTest() : rig_(RandomRig(MakeModel({.hidden = GetParam()}, 31), 20, 32, {.threads = 2})) {}

  std::vector<float> Run(const RigFormat& format) { return rig_.RunOne({.count = 20}, format); }

  StageRig rig_;
};

TEST_P(FormatsTest, Bf16OutputIsTheOneRoundingOfTheFp32Output) {
  for (DType input : {DType::kF32, DType::kBf16}) {
    for (OutputKind kind : {OutputKind::kDelta, OutputKind::kHighway}) {
      for (bool zeros : {false, true}) {
        const std::vector<float> full = Run({.input = input, .kind = kind, .zeros = zeros});
        const std::vector<float> half = Run({.input = input, .output = DType::kBf16, .kind = kind, .zeros = zeros});
        EXPECT_EQ(half, RoundAll(full));
        EXPECT_NE(half, full);
      }
    }
  }
}

TEST_P(FormatsTest, Bf16InputIsTheStepOfTheRoundedHighway) {
  std::vector<double> highway = oracle::RandomValues(20 * rig_.channels(), 1.0, 33);
  for (double& value : highway) value = oracle::RoundToBf16(value);
  std::vector<double> embeddings = oracle::RandomValues(20 * rig_.model().shape.embed, 1.0, 34);
  for (double& value : embeddings) value = oracle::RoundToBf16(value);
  StageRig rig(rig_.model(), embeddings, highway);
  for (OutputKind kind : {OutputKind::kDelta, OutputKind::kHighway}) {
    EXPECT_EQ(rig.RunOne({.count = 20}, {.input = DType::kBf16, .kind = kind}),
              rig.RunOne({.count = 20}, {.kind = kind}));
  }
}

TEST_P(FormatsTest, ZerosAreAHighwayOfZerosAndHighwayEqualsDelta) {
  const std::vector<float> delta = Run({.zeros = true});
  EXPECT_EQ(Run({.kind = OutputKind::kHighway, .zeros = true}), delta);
  std::vector<double> embeddings;
  for (size_t i = 0; i < 20; ++i) {
    const std::vector<double> row = Rows(rig_.Oracle(0, 20).embeddings, rig_.model().shape.embed, i, 1);
    embeddings.insert(embeddings.end(), row.begin(), row.end());
  }
  StageRig zeros(rig_.model(), embeddings, std::vector<double>(20 * rig_.channels(), 0.0));
  EXPECT_EQ(zeros.RunOne({.count = 20}), delta);
}

TEST_P(FormatsTest, InPlaceEqualsApart) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (OutputKind kind : {OutputKind::kDelta, OutputKind::kHighway}) {
      RigFormat format{.input = dtype, .output = dtype, .kind = kind};
      const std::vector<float> apart = Run(format);
      format.in_place = true;
      EXPECT_EQ(Run(format), apart);
    }
  }
}

TEST_P(FormatsTest, InPiecesEqualsWhole) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (DType output : {DType::kF32, DType::kBf16}) {
      for (OutputKind kind : {OutputKind::kDelta, OutputKind::kHighway}) {
        RigFormat format{.input = dtype, .output = output, .kind = kind};
        const std::vector<float> whole = Run(format);
        for (uint32_t bytes : {1u, 3u, 64u, 101u, 4000u, 1u << 20}) {
          format.piece_bytes = bytes;
          EXPECT_EQ(Run(format), whole) << bytes;
        }
      }
    }
  }
}

TEST_P(FormatsTest, AnyAddressWillDo) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    RigFormat format{.input = dtype, .output = dtype, .kind = OutputKind::kHighway};
    const std::vector<float> aligned = Run(format);
    for (uint32_t misalign : {1, 2, 3, 5}) {
      format.misalign = misalign;
      EXPECT_EQ(Run(format), aligned) << misalign;
    }
  }
}

// Arithmetic as IEEE has it, and nobody else's.
TEST_P(FormatsTest, NanInTheHighwayPoisonsItsOwnSequenceOnly) {
  std::vector<double> embeddings = Rows(rig_.Oracle(0, 20).embeddings, rig_.model().shape.embed, 0, 20);
  std::vector<double> highway = oracle::RandomValues(20 * rig_.channels(), 1.0, 35);
  StageRig clean(rig_.model(), embeddings, highway);
  highway[0] = std::nan("");  // token 0, stream 0
  StageRig rig(rig_.model(), embeddings, highway);
  const auto expected = clean.Run({{.first = 0, .count = 10}, {.first = 10, .count = 10}});
  const auto out = rig.Run({{.first = 0, .count = 10}, {.first = 10, .count = 10}});
  EXPECT_EQ(out[1], expected[1]);
  for (size_t i = 0; i < rig.channels(); ++i) EXPECT_EQ(std::isnan(out[0][i]), i < rig.model().shape.hidden);
  // Through the conv: token 3 sees token 0 at dilation 3, token 1 does not.
  EXPECT_FALSE(std::isnan(out[0][rig.channels()]));
  EXPECT_TRUE(std::isnan(out[0][3 * rig.channels()]));
}

INSTANTIATE_TEST_SUITE_P(Hidden, FormatsTest, ::testing::Values(1, 24, 37, 64), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace pleiad
