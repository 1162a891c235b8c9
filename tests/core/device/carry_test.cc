// Cuttings, the ring, undo rows, and what they may never touch.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

constexpr double kBound = 3e-4;

std::vector<uint32_t> RandomLengths(uint32_t total, uint32_t longest, std::mt19937& random) {
  std::vector<uint32_t> lengths;
  while (total > 0) {
    const uint32_t length = 1 + random() % std::min(longest, total);
    lengths.push_back(length);
    total -= length;
  }
  return lengths;
}

struct CarryCase {
  uint32_t ngram;
  uint32_t kernel;
  uint32_t hc;
  uint32_t rollback;
};

class CarryTest : public ::testing::TestWithParam<CarryCase> {
 protected:
  static constexpr uint32_t kTokens = 60;

  StageRig MakeRig(bool batch_invariant) {
    const CarryCase& param = GetParam();
    DeviceOptions options;
    options.rollback_tokens = param.rollback;
    options.batch_invariant = batch_invariant;
    options.threads = 2;
    const oracle::Model model =
        MakeModel({.hidden = 21, .hc = param.hc, .embed = 48, .kernel = param.kernel, .ngram = param.ngram}, 11);
    return RandomRig(model, kTokens, 12, options);
  }
};

// B17, first half: neighbours are full of NaN, and so is what the carry held before.
TEST_P(CarryTest, EveryCuttingIsBitEqual) {
  StageRig rig = MakeRig(true);
  for (uint32_t slot = 0; slot < 4; ++slot) rig.Poison(CarrySlot(slot));
  RigCarry carry = rig.NewCarry();
  rig.NewCarry();
  const std::vector<float> whole = rig.RunCut(&carry, 0, {kTokens});
  const std::vector<float> rows = rig.ReadRows(carry);
  const oracle::Trace trace = rig.Oracle(0, kTokens);
  ASSERT_LE(oracle::RelativeL2(whole, trace.delta), kBound);
  ASSERT_LE(oracle::RelativeL2(rows, oracle::ConvRowsAt(rig.model(), trace, kTokens)), kBound);

  std::mt19937 random(13);
  for (int round = 0; round < 60; ++round) {
    const uint32_t longest = round < 12 ? round + 1 : 1 + random() % 25;
    const std::vector<uint32_t> lengths = RandomLengths(kTokens, longest, random);
    carry.ring = {};
    EXPECT_EQ(rig.RunCut(&carry, 0, lengths), whole) << round;
    EXPECT_EQ(rig.ReadRows(carry), rows) << round;
  }
}

TEST_P(CarryTest, EveryCuttingIsWithinTheBound) {
  StageRig rig = MakeRig(false);
  RigCarry carry = rig.NewCarry();
  const oracle::Trace trace = rig.Oracle(0, kTokens);
  std::mt19937 random(14);
  for (int round = 0; round < 20; ++round) {
    carry.ring = {};
    const std::vector<float> out = rig.RunCut(&carry, 0, RandomLengths(kTokens, 30, random));
    EXPECT_LE(oracle::RelativeL2(out, trace.delta), kBound) << round;
    EXPECT_LE(oracle::RelativeL2(rig.ReadRows(carry), oracle::ConvRowsAt(rig.model(), trace, kTokens)), kBound);
  }
}

// A step leaves rows of other carries and other sequences' results alone.
TEST_P(CarryTest, OtherCarriesStayAsTheyAre) {
  StageRig rig = MakeRig(true);
  RigCarry below = rig.NewCarry();
  RigCarry carry = rig.NewCarry();
  RigCarry above = rig.NewCarry();
  rig.RunCut(&below, 0, {20});
  rig.RunCut(&above, 10, {20});
  const std::vector<float> rows_below = rig.ReadRows(below);
  const std::vector<float> rows_above = rig.ReadRows(above);
  rig.RunCut(&carry, 0, {1, 40, 3, 16});
  EXPECT_EQ(rig.ReadRows(below), rows_below);
  EXPECT_EQ(rig.ReadRows(above), rows_above);
}

TEST_P(CarryTest, RowsSurviveReadAndWrite) {
  StageRig rig = MakeRig(true);
  RigCarry original = rig.NewCarry();
  rig.RunCut(&original, 0, {25});
  const std::vector<float> rows = rig.ReadRows(original);
  const std::vector<float> tail = rig.RunCut(&original, 25, {5, 30});
  RigCarry copy = rig.NewCarry();
  rig.Poison(copy.slot);
  rig.WriteRows(&copy, rows);
  EXPECT_EQ(rig.ReadRows(copy), rows);
  EXPECT_EQ(rig.RunCut(&copy, 25, {5, 30}), tail);
}

TEST_P(CarryTest, MissingRowsReadAsZero) {
  StageRig rig = MakeRig(true);
  for (uint32_t slot = 0; slot < 4; ++slot) rig.Poison(CarrySlot(slot));
  RigCarry carry = rig.NewCarry();
  EXPECT_EQ(rig.ReadRows(carry), std::vector<float>(rig.state_len() * rig.channels(), 0.0f));
  const std::vector<float> one = rig.RunCut(&carry, 0, {1});
  EXPECT_LE(oracle::RelativeL2(rig.ReadRows(carry), oracle::ConvRowsAt(rig.model(), rig.Oracle(0, 1), 1)), 2e-2);
  for (float value : one) EXPECT_FALSE(std::isnan(value));
}

// The reverse of the poison: a row that does exist and is NaN must show.
TEST_P(CarryTest, ExistingNanShows) {
  StageRig rig = MakeRig(true);
  if (rig.state_len() == 0) GTEST_SKIP() << "no carried rows";
  RigCarry carry = rig.NewCarry();
  rig.WriteRows(&carry, std::vector<float>(rig.state_len() * rig.channels(), std::nanf("")));
  for (float value : rig.RunCut(&carry, 0, {1})) EXPECT_TRUE(std::isnan(value));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CarryTest,
                         ::testing::Values(CarryCase{3, 4, 4, 8}, CarryCase{3, 4, 1, 0}, CarryCase{2, 4, 2, 1},
                                           CarryCase{4, 3, 3, 8}, CarryCase{2, 1, 4, 8}, CarryCase{3, 2, 4, 20}),
                         [](const auto& param) {
                           const CarryCase& c = param.param;
                           return absl::StrCat("N", c.ngram, "K", c.kernel, "Hc", c.hc, "Rollback", c.rollback);
                         });

// F5 through the device: the impulse lies in the carry, the tokens add nothing of their own.
TEST(CarryConvTest, ImpulseInTheCarryComesBackAtTheDilatedTaps) {
  oracle::Model model = MakeModel({.hidden = 8, .hc = 2}, 15);
  std::fill(model.weights.value.begin(), model.weights.value.end(), uint16_t{0});
  for (size_t c = 0; c < model.shape.channels(); ++c) {
    const uint16_t taps[] = {FloatToBf16(1), FloatToBf16(10), FloatToBf16(100), FloatToBf16(1000)};
    std::copy(std::begin(taps), std::end(taps), &model.weights.conv[c * 4]);
  }
  StageRig rig = RandomRig(model, 12, 16);
  RigCarry carry = rig.NewCarry();
  std::vector<float> rows(9 * rig.channels(), 0.0f);
  std::fill(rows.end() - static_cast<ptrdiff_t>(rig.channels()), rows.end(), 1.0f);  // t = 0 of the fixture
  rig.WriteRows(&carry, rows);
  const std::vector<float> out = rig.RunCut(&carry, 0, {4, 1, 5});
  const auto silu = [](double c) { return c / (1 + std::exp(-c)); };
  for (size_t t = 1; t <= 10; ++t) {
    const double expected = t == 3 ? silu(100) : t == 6 ? silu(10) : t == 9 ? silu(1) : 0;
    for (size_t c = 0; c < rig.channels(); ++c) {
      EXPECT_NEAR(out[(t - 1) * rig.channels() + c], expected, expected * 1e-6) << t;
    }
  }
}

// What Device::SaveCarry gives is all there is to a carry: another one goes on as the first would have.
TEST_P(CarryTest, AWholeCarryMovesToAnotherPlace) {
  StageRig rig = MakeRig(true);
  const uint32_t rollback = GetParam().rollback, longest = rollback + 12;
  for (uint32_t slot = 0; slot < 2; ++slot) rig.Poison(CarrySlot(slot));
  RigCarry carry = rig.NewCarry();
  rig.RunCut(&carry, 0, {7, longest});
  std::vector<float> rows((rig.ring_rows() + rig.state_len()) * rig.channels(), 5.0f);
  ASSERT_TRUE(rig.device().SaveCarry(carry.slot, absl::MakeSpan(rows)).ok());
  RigCarry moved = carry;
  moved.slot = rig.NewCarry().slot;
  ASSERT_TRUE(rig.device().LoadCarry(moved.slot, rows).ok());
  const std::vector<float> state = rig.ReadRows(carry);
  EXPECT_EQ(rig.ReadRows(moved), state);
  rig.Poison(carry.slot);
  // From within the ring, and from the start of the long step by its undo rows.
  for (const StartAt start : {StartAt::kHere, StartAt::kLastStart}) {
    StageRig other = MakeRig(true);
    RigCarry again = moved, calm = other.NewCarry();
    other.RunCut(&calm, 0, {7, longest});
    ASSERT_TRUE(rig.device().LoadCarry(moved.slot, rows).ok());
    const uint32_t back = start == StartAt::kHere ? std::min(rollback, 2u) : 0;
    const uint32_t first = start == StartAt::kHere ? 7 + longest - back : 7;
    EXPECT_EQ(rig.RunOne({.carry = &again, .first = first, .count = 3, .back = back, .start = start}),
              other.RunOne({.carry = &calm, .first = first, .count = 3, .back = back, .start = start}));
  }
}

TEST(WholeCarry, OtherSizesAndPlacesAreRefused) {
  StageRig rig = RandomRig(MakeModel({}, 11), 4, 12);
  std::vector<float> rows((rig.ring_rows() + rig.state_len()) * rig.channels() + 1);
  const auto all = absl::MakeSpan(rows);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.device().SaveCarry(CarrySlot(0), all)));
  EXPECT_TRUE(absl::IsInvalidArgument(rig.device().LoadCarry(CarrySlot(0), all)));
  EXPECT_TRUE(absl::IsInvalidArgument(rig.device().SaveCarry(CarrySlot(1u << 20), all.first(all.size() - 1))));
  EXPECT_TRUE(rig.device().SaveCarry(CarrySlot(0), all.first(all.size() - 1)).ok()) << "the device is not lost by that";
}

}  // namespace
}  // namespace pleiad
