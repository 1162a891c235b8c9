// Steps, moves back within the ring, returns to the start of the last step, against plain decoding.
#include <gtest/gtest.h>

#include <random>

#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

class RewindTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kTokens = 160;

  RewindTest() {
    DeviceOptions options;
    options.rollback_tokens = GetParam();
    options.batch_invariant = true;
    options.threads = 2;
    rig_ = std::make_unique<StageRig>(RandomRig(MakeModel({.hidden = 12, .embed = 32}, 21), kTokens, 22, options));
    RigCarry carry = rig_->NewCarry();
    for (uint32_t t = 0; t < kTokens; ++t) {
      plain_.push_back(rig_->RunOne({.carry = &carry, .first = t, .count = 1}));
      rows_.push_back(rig_->ReadRows(carry));
    }
  }

  std::vector<float> Plain(uint32_t first, uint32_t count) const {
    return Concat({plain_.begin() + first, plain_.begin() + first + count});
  }

  std::unique_ptr<StageRig> rig_;
  std::vector<std::vector<float>> plain_;  // [kTokens], one token at a time
  std::vector<std::vector<float>> rows_;   // conv rows after each
};

TEST_P(RewindTest, RandomWalksEqualPlainDecoding) {
  const uint32_t rollback = GetParam();
  std::mt19937 random(23);
  RigCarry carry = rig_->NewCarry();
  rig_->Poison(carry.slot);
  for (int walk = 0; walk < 30; ++walk) {
    carry = {.slot = carry.slot};
    uint32_t position = 0;
    uint32_t low = 0;
    uint32_t last_start = 0;
    while (position < kTokens) {
      RigStep step{.carry = &carry};
      const uint32_t choice = random() % 4;
      if (choice == 0 && position > low) {
        step.back = 1 + random() % std::min(position - low, rollback == 0 ? 1 : rollback);
        if (position - step.back < low) step.back = 0;
        position -= step.back;
      } else if (choice == 1 && carry.start_in_undo) {
        step.start = StartAt::kLastStart;
        position = low = last_start;
      }
      step.first = position;
      step.count = std::min<uint32_t>(kTokens - position, random() % 3 == 0 ? 1 + random() % 40 : 1 + random() % 5);
      last_start = position;
      ASSERT_EQ(rig_->RunOne(step), Plain(position, step.count))
          << "walk " << walk << " position " << position << " count " << step.count;
      position += step.count;
      if (position > rollback) low = std::max(low, position - rollback);
      ASSERT_EQ(rig_->ReadRows(carry), rows_[position - 1]) << "walk " << walk << " position " << position;
    }
  }
}

// A long step taken back by undo, with no tokens, then read and gone on from.
TEST_P(RewindTest, AnEmptyUndoMoveRestoresTheRows) {
  RigCarry carry = rig_->NewCarry();
  rig_->RunCut(&carry, 0, {20});
  rig_->RunCut(&carry, 50, {60});  // other tokens, longer than any ring here
  rig_->RunOne({.carry = &carry, .start = StartAt::kLastStart});
  EXPECT_EQ(rig_->ReadRows(carry), rows_[19]);
  EXPECT_EQ(rig_->RunCut(&carry, 20, {1, 30}), Plain(20, 31));
}

// Retried again and again: the undo rows are set aside from undo itself.
TEST_P(RewindTest, ALongStepCanBeRetriedFromUndoManyTimes) {
  RigCarry carry = rig_->NewCarry();
  rig_->RunCut(&carry, 0, {5});
  rig_->RunCut(&carry, 5, {50});
  for (uint32_t count : {50u, 30u, 21u, 50u}) {
    EXPECT_EQ(rig_->RunOne({.carry = &carry, .first = 5, .count = count, .start = StartAt::kLastStart}),
              Plain(5, count));
  }
  EXPECT_EQ(rig_->ReadRows(carry), rows_[54]);
}

// Propose five, accept none to all.
TEST_P(RewindTest, SpeculationEqualsPlainDecoding) {
  if (GetParam() < 5) GTEST_SKIP() << "proposals of five need rollback 5";
  RigCarry carry = rig_->NewCarry();
  for (uint32_t accepted = 0; accepted <= 5; ++accepted) {
    carry = {.slot = carry.slot};
    rig_->RunCut(&carry, 0, {17});
    rig_->RunOne({.carry = &carry, .first = 17, .count = accepted});
    rig_->RunOne({.carry = &carry, .first = 90, .count = 5 - accepted});  // wrong proposals
    const RigStep go_on{.carry = &carry, .first = 17 + accepted, .count = 6, .back = 5 - accepted};
    EXPECT_EQ(rig_->RunOne(go_on), Plain(17 + accepted, 6)) << accepted;
    EXPECT_EQ(rig_->ReadRows(carry), rows_[22 + accepted]);
  }
}

INSTANTIATE_TEST_SUITE_P(Rollback, RewindTest, ::testing::Values(0, 1, 8, 16), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace pleiad
