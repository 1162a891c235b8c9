#include "core/engine/carry_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace pleiad {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

void Step(CarryState& state, uint32_t first, uint32_t count) {
  state.Commit(*state.At(std::nullopt), Tokens(first, count));
}

const CarryShape kShape{2, 9, 8, 7};

TEST(CarryState, FreshStandsAtZeroWithEosHistory) {
  CarryState state(kShape);
  EXPECT_EQ(state.position(), Position(0));
  EXPECT_EQ(state.low(), Position(0));
  EXPECT_THAT(state.At(std::nullopt)->history, ElementsAre(7, 7));
  EXPECT_EQ(state.At(std::nullopt)->ring.valid, 0u);
}

TEST(CarryState, LowFollowsTheEndOfStepsByRollback) {
  CarryState state(kShape);
  Step(state, 100, 5);
  EXPECT_EQ(state.low(), Position(0));
  Step(state, 105, 5);
  EXPECT_EQ(state.low(), Position(2));
  EXPECT_FALSE(state.At(Position(1)).has_value());
  EXPECT_FALSE(state.At(Position(11)).has_value());
  EXPECT_THAT(state.At(Position(2))->history, ElementsAre(100, 101));
  EXPECT_EQ(state.At(Position(2))->ring.valid, 2u);
}

TEST(CarryState, MovingBackKeepsLowAndTheWayForwardUntilTheNextStep) {
  CarryState state(kShape);
  Step(state, 100, 6);
  Step(state, 106, 4);
  state.Commit(*state.At(Position(4)), {});
  EXPECT_EQ(state.position(), Position(4));
  EXPECT_EQ(state.low(), Position(2));
  // The start of the last step lies ahead and can still be had.
  ASSERT_TRUE(state.At(Position(6)).has_value());
  EXPECT_FALSE(state.At(Position(7)).has_value());
  EXPECT_THAT(state.At(Position(6))->history, ElementsAre(104, 105));
  Step(state, 200, 1);
  EXPECT_EQ(state.position(), Position(5));
  EXPECT_FALSE(state.At(Position(6)).has_value());
  EXPECT_THAT(state.At(std::nullopt)->history, ElementsAre(103, 200));
}

TEST(CarryState, TheStartOfALongStepIsHadByUndoOnce) {
  CarryState state(kShape);
  Step(state, 100, 3);
  Step(state, 103, 20);
  EXPECT_EQ(state.low(), Position(15));
  EXPECT_EQ(state.last_step_start(), Position(3));
  state.Commit(*state.At(Position(20)), {});  // a move keeps it
  const std::optional<StepStart> start = state.At(Position(3));
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->kind, StartKind::kUndo);
  EXPECT_EQ(start->ring.valid, 3u);
  EXPECT_THAT(start->history, ElementsAre(101, 102));
  state.Commit(*start, {});
  EXPECT_EQ(state.position(), Position(3));
  EXPECT_EQ(state.low(), Position(3));
  EXPECT_FALSE(state.At(Position(20)).has_value());
  EXPECT_EQ(state.At(Position(3))->kind, StartKind::kRing);
}

TEST(CarryState, AShortStepEndsTheUndoOfALongOne) {
  CarryState state(kShape);
  Step(state, 100, 20);
  Step(state, 120, 1);
  EXPECT_FALSE(state.At(Position(0)).has_value());
  EXPECT_EQ(state.last_step_start(), Position(20));
}

TEST(CarryState, WithoutRollbackOnlyTheStartOfTheLastStepCanBeHad) {
  CarryState state({2, 9, 0, 7});
  Step(state, 100, 1);
  Step(state, 101, 1);
  EXPECT_EQ(state.low(), Position(2));
  EXPECT_FALSE(state.At(Position(0)).has_value());
  EXPECT_EQ(state.At(Position(1))->kind, StartKind::kUndo);
  EXPECT_THAT(state.At(Position(1))->history, ElementsAre(7, 100));
}

TEST(CarryState, RestoreStandsWhereItSaysAndGoesNoLower) {
  CarryState state(kShape);
  const std::vector<uint32_t> history = {5, 6};
  state.Restore(Position(1000), history);
  EXPECT_EQ(state.low(), Position(1000));
  EXPECT_FALSE(state.At(Position(999)).has_value());
  EXPECT_EQ(state.At(std::nullopt)->ring.valid, 9u);
  Step(state, 100, 3);
  EXPECT_THAT(state.At(Position(1001))->history, ElementsAre(6, 100));
}

// The device's ring as a plain log: what each ring row holds, by the token that wrote it.
class RingModel {
 public:
  explicit RingModel(const CarryShape& shape) : shape_(shape), ring_(shape.ring_rows(), 0), undo_(shape.state_len, 0) {}

  // Does what the device does for a step and returns the rows it read, newest first, 0 where missing.
  std::vector<uint32_t> Step(const StepStart& start, const std::vector<uint32_t>& tokens) {
    const uint32_t rows = shape_.ring_rows();
    if (start.kind == StartKind::kUndo) {
      for (uint32_t j = 0; j < shape_.state_len; ++j) {
        ring_[(start.ring.cursor + 2 * rows - shape_.state_len + j) % rows] = undo_[j];
      }
    }
    const bool is_long = tokens.size() > shape_.rollback_tokens;
    if (is_long) {
      for (uint32_t j = 0; j < shape_.state_len; ++j) {
        undo_[j] = ring_[(start.ring.cursor + 2 * rows - shape_.state_len + j) % rows];
      }
    }
    std::vector<uint32_t> read;
    for (uint32_t i = 1; i <= shape_.state_len; ++i) {
      const uint32_t value = is_long ? undo_[shape_.state_len - i] : ring_[(start.ring.cursor + 2 * rows - i) % rows];
      read.push_back(i <= start.ring.valid ? value : 0);
    }
    const size_t keep = std::min<size_t>(tokens.size(), rows);
    for (size_t i = tokens.size() - keep; i < tokens.size(); ++i) ring_[(start.ring.cursor + i) % rows] = tokens[i];
    return read;
  }

 private:
  CarryShape shape_;
  std::vector<uint32_t> ring_, undo_;
};

TEST(CarryState, RandomStepsAndRewindsReadTheRowsOfThePrefix) {
  for (uint32_t rollback : {0u, 1u, 8u}) {
    const CarryShape shape{2, 9, rollback, 7};
    std::mt19937 random(rollback + 17);
    CarryState state(shape);
    RingModel ring(shape);
    std::vector<uint32_t> tokens;  // the accepted prefix
    uint32_t next = 1000;
    for (int round = 0; round < 20000; ++round) {
      std::optional<Position> target;
      const uint32_t choice = random() % 4;
      if (choice == 0) target = state.last_step_start();
      if (choice == 1) {
        const uint64_t span = state.position().value() - state.low().value();
        target = Position(state.low().value() + random() % (span + 1));
      }
      const bool fresh = random() % 200 == 0;
      const StepStart start = fresh ? state.Fresh() : *state.At(target);
      std::vector<uint32_t> step(random() % (random() % 8 == 0 ? 40 : 4));
      for (uint32_t& token : step) token = next++;
      std::vector<uint32_t> prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(start.position.value()));
      if (!step.empty() || start.kind == StartKind::kUndo) {
        const std::vector<uint32_t> read = ring.Step(start, step);
        for (size_t i = 1; i <= shape.state_len && !step.empty(); ++i) {
          ASSERT_EQ(read[i - 1], i <= prefix.size() ? prefix[prefix.size() - i] : 0u) << "round " << round;
        }
      }
      std::vector<uint32_t> history = {7, 7};
      history.insert(history.end(), prefix.begin(), prefix.end());
      ASSERT_EQ(start.history, TokenHistory(history.end() - 2, history.end()));
      state.Commit(start, step);
      if (!step.empty() || start.kind != StartKind::kRing) {
        tokens = std::move(prefix);
        tokens.insert(tokens.end(), step.begin(), step.end());
      }
      ASSERT_EQ(state.position().value(), start.position.value() + step.size());
    }
  }
}

}  // namespace
}  // namespace pleiad
