#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

class EnginePrestage : public ::testing::Test {
 protected:
  StepResult Prestage(std::vector<uint32_t> tokens, std::optional<uint64_t> position = {}, bool fresh = false) {
    StepRequest request = h.Request(a, std::move(tokens), position);
    request.mode = StepMode::kPrestage;
    request.input = {};
    request.segments[0].fresh = fresh;
    return h.Step(request);
  }
  uint32_t Prestaged() { return h.Get(a).layers.at(0).prestaged_tokens; }

  Harness h;
  SequenceId a = h.Open().sequence;
};

TEST_F(EnginePrestage, MovesNothingAndIsUsedByTheStepItNames) {
  const StepResult prestage = Prestage({1, 2, 3});
  ASSERT_TRUE(prestage.outcome.ok());
  EXPECT_EQ(prestage.segments.at(0).position, Position(0));
  EXPECT_EQ(prestage.stats.rows.hits, 12u);
  EXPECT_EQ(Prestaged(), 3u);
  const StepResult step = h.Step(h.Request(a, {1, 2, 3}));
  EXPECT_EQ(step.stats.rows.hits, 0u);
  EXPECT_EQ(step.segments.at(0).position, Position(3));
  EXPECT_EQ(Prestaged(), 0u);
  EXPECT_EQ(h.engine->stats().prestage_used, 1u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
  EXPECT_EQ(h.rows->enqueued_ids(), 12u);
}

TEST_F(EnginePrestage, APrefixUsesItAndTheRestStays) {
  Prestage({1, 2, 3});
  EXPECT_EQ(h.Step(h.Request(a, {1})).stats.rows.hits, 0u);
  EXPECT_EQ(Prestaged(), 2u);
  EXPECT_EQ(h.Step(h.Request(a, {2, 3}, 1)).stats.rows.hits, 0u);
  EXPECT_EQ(h.engine->stats().prestage_used, 1u);
}

TEST_F(EnginePrestage, UsesTheSameRowsAsAStepWithout) {
  Prestage({1, 2, 3});
  h.Step(h.Request(a, {1, 2}));
  h.Step(h.Request(a, {3}));
  const SequenceId b = h.Open().sequence;
  h.Step(h.Request(b, {1, 2}));
  h.Step(h.Request(b, {3}));
  const std::vector<RanBatch> ran = h.device->WaitForBatches(4);
  for (int i = 0; i < 2; ++i) {
    const auto& with = ran[static_cast<size_t>(i)].gather;
    const auto& without = ran[static_cast<size_t>(i) + 2].gather;
    ASSERT_EQ(with.size(), without.size());
    for (size_t j = 0; j < with.size(); ++j) EXPECT_EQ(with[j].bits(), without[j].bits());
  }
}

TEST_F(EnginePrestage, AnotherStepDropsIt) {
  Prestage({1, 2, 3});
  EXPECT_EQ(h.Step(h.Request(a, {9})).stats.rows.hits, 4u);
  EXPECT_EQ(Prestaged(), 0u);
  EXPECT_EQ(h.engine->stats().prestage_dropped, 1u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
}

TEST_F(EnginePrestage, ALongerStepIsAnotherStep) {
  Prestage({1, 2});
  EXPECT_EQ(h.Step(h.Request(a, {1, 2, 3})).stats.rows.hits, 12u);
  EXPECT_EQ(h.engine->stats().prestage_dropped, 1u);
}

TEST_F(EnginePrestage, ANewOneReplacesItAndAMoveElsewhereDropsIt) {
  h.Step(h.Request(a, {5, 6}));
  Prestage({1, 2});
  Prestage({3});
  EXPECT_EQ(Prestaged(), 1u);
  h.Step(h.Request(a, {}, 2));
  EXPECT_EQ(Prestaged(), 1u);
  h.Step(h.Request(a, {}, 1));
  EXPECT_EQ(Prestaged(), 0u);
  EXPECT_EQ(h.engine->stats().prestage_dropped, 2u);
}

TEST_F(EnginePrestage, FreshIsPartOfTheKey) {
  Prestage({1, 2}, std::nullopt, true);
  StepRequest request = h.Request(a, {1, 2});
  EXPECT_EQ(h.Step(request).stats.rows.hits, 8u);
  Prestage({1, 2}, std::nullopt, true);
  request.segments[0].fresh = true;
  EXPECT_EQ(h.Step(request).stats.rows.hits, 0u);
}

// The history is the same at both positions, so that only the position tells them apart.
TEST_F(EnginePrestage, ThePositionIsPartOfTheKey) {
  h.Step(h.Request(a, {5, 5, 5, 5}));
  Prestage({1}, 2);
  EXPECT_EQ(h.Step(h.Request(a, {1})).stats.rows.hits, 4u);
  EXPECT_EQ(h.engine->stats().prestage_dropped, 1u);
  Prestage({1}, 2);
  EXPECT_EQ(h.Step(h.Request(a, {1}, 2)).stats.rows.hits, 0u);
}

TEST_F(EnginePrestage, ReleaseAndRestoreDropIt) {
  Prestage({1, 2});
  const SnapshotResult snapshot = h.Snapshot(a);
  EXPECT_EQ(Prestaged(), 2u);
  EXPECT_TRUE(h.Restore(a, snapshot.layers).ok());
  EXPECT_EQ(Prestaged(), 0u);
  Prestage({1, 2});
  h.Release(a);
  EXPECT_EQ(h.engine->stats().prestage_dropped, 2u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
}

TEST_F(EnginePrestage, ARefusedStepLeavesIt) {
  Prestage({1, 2});
  h.Step(h.Request(a, {1, 2}, 77));
  EXPECT_EQ(Prestaged(), 2u);
  // The refused step does not count against one with a position.
  EXPECT_EQ(h.Step(h.Request(a, {1, 2}, 0)).stats.rows.hits, 0u);
}

TEST_F(EnginePrestage, AFailedPrestageFailsNoStep) {
  EXPECT_FALSE(Prestage({1}, 55).outcome.ok());
  EXPECT_TRUE(h.Step(h.Request(a, {1})).outcome.ok());
}

TEST_F(EnginePrestage, OneThatYieldedIsResolvedAnew) {
  Prestage({1, 2});
  h.rows->Yield();
  EXPECT_EQ(Prestaged(), 0u);
  EXPECT_EQ(h.Step(h.Request(a, {1, 2})).stats.rows.hits, 8u);
  EXPECT_EQ(h.engine->stats().prestage_yielded, 1u);
}

TEST(EnginePrestageTogether, SequencesShareAPlanOfUpTo64TokensWherePlansHoldNothing) {
  for (const bool shared : {false, true}) {
    Harness h({.max_tokens = 256, .max_sequences = 5});
    if (shared) h.rows->HoldNothing();
    StepRequest prestage;
    prestage.layer = LayerIndex(1);
    prestage.mode = StepMode::kPrestage;
    std::vector<SequenceId> sequences;
    for (const uint32_t tokens : {30u, 34u, 1u, 70u, 3u}) {
      sequences.push_back(h.Open().sequence);
      prestage.segments.push_back({.sequence = sequences.back(), .num_tokens = tokens, .fresh = false, .position = {}});
      prestage.token_ids.resize(prestage.token_ids.size() + tokens, tokens);
    }
    ASSERT_TRUE(h.Step(prestage).outcome.ok());
    EXPECT_EQ(h.rows->held_plans(), shared ? 4u : 5u);
    const auto use = [&](size_t i, uint32_t tokens) {
      EXPECT_EQ(h.Step(h.Request(sequences[i], std::vector<uint32_t>(tokens, tokens))).stats.rows.hits, 0u);
    };
    use(0, 30);
    EXPECT_EQ(h.rows->held_plans(), 4u) << "the second sequence has it too";
    use(1, 34);
    EXPECT_EQ(h.rows->held_plans(), 3u);
    use(4, 3);
    use(3, 70);
    use(2, 1);
    EXPECT_EQ(h.rows->held_plans(), 0u);
    EXPECT_EQ(h.engine->stats().prestage_used, 5u);
  }
}

}  // namespace
}  // namespace pleiad
