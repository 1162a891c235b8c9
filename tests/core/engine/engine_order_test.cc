// Queues, order, positions and failed steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;

TEST(EngineOrder, StepsOfACarryRunOneAfterTheOther) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1, 2}));
  Answer<StepResult> second = h.Submit(h.Request(a, {3}));
  h.device->WaitForBatches(1);
  EXPECT_FALSE(second.ready());
  h.device->LetGo();
  EXPECT_EQ(first.Get().segments.at(0).position, Position(2));
  const std::vector<RanBatch> ran = h.device->WaitForBatches(2);
  EXPECT_EQ(ran[1].num_tokens, 1u);
  h.device->LetGo();
  EXPECT_EQ(second.Get().segments.at(0).position, Position(3));
}

TEST(EngineOrder, ReadyStepsOfManySequencesShareABatch) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence, c = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  Answer<StepResult> second = h.Submit(h.Request(b, {1, 2}));
  Answer<StepResult> third = h.Submit(h.Request(c, {3}));
  h.device->LetGo();
  const std::vector<RanBatch> ran = h.device->WaitForBatches(2);
  EXPECT_EQ(ran[1].num_tokens, 3u);
  h.device->Open();
  EXPECT_EQ(second.Get().stats.batch_tokens, 3u);
  EXPECT_EQ(third.Get().segments.at(0).position, Position(1));
}

TEST(EngineOrder, AnIdleDeviceThatOnlyEnqueuesIsGivenAShortStepByTheThreadThatSubmitsIt) {
  for (const RunCost cost : {RunCost::kTheWork, RunCost::kEnqueueing}) {
    Harness h({.run_cost = cost});
    const bool here = cost == RunCost::kEnqueueing;
    const SequenceId a = h.Open().sequence;
    Answer<StepResult> answer = h.Submit(h.Request(a, {1}));
    EXPECT_TRUE(!here || answer.ready());  // nothing was left to another thread
    EXPECT_EQ(answer.Get().segments.at(0).position, Position(1));
    EXPECT_EQ(h.device->WaitForBatches(1)[0].thread == std::this_thread::get_id(), here);
  }
}

TEST(EngineOrder, ABusyDeviceIsGivenStepsByItsThreadInTheBatchesTheyGatherTo) {
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  const SequenceId a = h.Open().sequence, b = h.Open().sequence, c = h.Open().sequence, d = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  EXPECT_EQ(h.device->WaitForBatches(1)[0].thread, std::this_thread::get_id());
  EXPECT_FALSE(first.ready());
  Answer<StepResult> second = h.Submit(h.Request(b, {1, 2}));
  EXPECT_NE(h.device->WaitForBatches(2)[1].thread, std::this_thread::get_id());
  Answer<StepResult> third = h.Submit(h.Request(c, {3}));
  Answer<StepResult> fourth = h.Submit(h.Request(d, {3, 4}));
  h.device->Open();
  EXPECT_TRUE(third.Get().outcome.ok());
  EXPECT_TRUE(fourth.Get().outcome.ok());
  const std::vector<RanBatch> ran = h.device->WaitForBatches(3);
  EXPECT_EQ(ran.size(), 3u);
  EXPECT_EQ(ran[2].num_tokens, 3u);
}

TEST(EngineOrder, AStepOfManyBytesIsLeftToTheDeviceThread) {
  Harness h({.max_tokens = 1 << 16, .run_cost = RunCost::kEnqueueing});
  const SequenceId a = h.Open().sequence;
  const size_t tokens = (1 << 20) / (h.geometry.channels() * sizeof(float)) + 1;
  std::vector<std::byte> highway(tokens * h.geometry.channels() * sizeof(float));
  StepRequest request = h.Request(a, std::vector<uint32_t>(tokens, 1));
  request.input = {StepInput::Source::kData, DType::kF32, highway.data(), {}, highway.size()};
  EXPECT_TRUE(h.Step(std::move(request)).outcome.ok());
  EXPECT_NE(h.device->WaitForBatches(1)[0].thread, std::this_thread::get_id());
}

TEST(EngineOrder, APositionMovesTheCarryFirst) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1, 2, 3}));
  EXPECT_THAT(h.Where(a), ElementsAre(3, 0, 0));
  EXPECT_EQ(h.Step(h.Request(a, {4}, 1)).segments.at(0).position, Position(2));
  const StepResult bad = h.Step(h.Request(a, {5}, 9));
  EXPECT_EQ(bad.outcome.code, absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(bad.outcome.details.size(), 1u);
  EXPECT_EQ(bad.outcome.details[0].reason, Reason::kPositionUnreachable);
  EXPECT_EQ(bad.outcome.details[0].position, Position(2));
  EXPECT_EQ(bad.outcome.details[0].low, Position(0));
  EXPECT_THAT(h.Where(a), ElementsAre(2, 0, 1));
}

TEST(EngineOrder, AFailedStepHoldsUpStepsWithoutAPosition) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1, 2}));
  EXPECT_EQ(h.Step(h.Request(a, {2000})).outcome.details.at(0).reason, Reason::kTokenOutOfVocabulary);
  EXPECT_EQ(h.Step(h.Request(a, {3})).outcome.details.at(0).reason, Reason::kPredecessorFailed);
  EXPECT_EQ(h.Step(h.Request(a, {3})).outcome.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(h.Step(h.Request(a, {3}, 2)).outcome.ok());
  EXPECT_TRUE(h.Step(h.Request(a, {4})).outcome.ok());
  EXPECT_EQ(h.Where(a)[0], 4u);
}

TEST(EngineOrder, ARefusalOnArrivalKeepsItsPlace) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  Answer<StepResult> bad = h.Submit(h.Request(a, {2000}));
  Answer<StepResult> next = h.Submit(h.Request(a, {2}));
  Answer<GetSequenceResult> get = h.SubmitGet(a);
  h.device->WaitForBatches(1);
  EXPECT_FALSE(bad.ready());
  EXPECT_FALSE(get.ready());
  h.device->Open();
  EXPECT_TRUE(first.Get().outcome.ok());
  EXPECT_EQ(bad.Get().outcome.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(next.Get().outcome.details.at(0).reason, Reason::kPredecessorFailed);
  EXPECT_EQ(get.Get().layers.at(0).position, Position(1));
}

TEST(EngineOrder, ARequestWaitsForTheHeadOfAllItsQueues) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  StepRequest both = h.Request(a, {2});
  both.segments.push_back({b, 1, false, std::nullopt});
  both.token_ids.push_back(3);
  Answer<StepResult> second = h.Submit(std::move(both));
  Answer<StepResult> third = h.Submit(h.Request(b, {4}));
  EXPECT_FALSE(second.ready());
  h.device->Open();
  EXPECT_EQ(second.Get().segments.at(1).position, Position(1));
  EXPECT_EQ(third.Get().segments.at(0).position, Position(2));
  EXPECT_EQ(first.Get().segments.at(0).position, Position(1));
}

TEST(EngineOrder, ARefusalListsEveryBadSegmentAndMovesNothing) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.Step(h.Request(a, {1}));
  StepRequest request = h.Request(a, {2});
  request.segments.push_back({SequenceId(12345), 1, false, std::nullopt});
  request.segments.push_back({b, 1, false, Position(5)});
  request.token_ids = {2, 3, 4};
  const StepResult result = h.Step(std::move(request));
  EXPECT_EQ(result.outcome.code, absl::StatusCode::kNotFound);
  ASSERT_EQ(result.outcome.details.size(), 2u);
  EXPECT_EQ(result.outcome.details[0].segment, 1u);
  EXPECT_EQ(result.outcome.details[1].segment, 2u);
  EXPECT_EQ(h.Where(a)[0], 1u);
  EXPECT_EQ(h.Where(b)[0], 0u);
}

TEST(EngineOrder, ThrowAwayCarriesAreInNoQueue) {
  Harness h({.max_sequences = 1});
  h.Open();
  StepRequest request = h.Request(SequenceId(0), {1, 2});
  request.segments.push_back({SequenceId(0), 1, false, Position(0)});
  request.token_ids = {1, 2, 3};
  const StepResult result = h.Step(request);
  ASSERT_TRUE(result.outcome.ok());
  EXPECT_EQ(result.segments.at(0).position, Position(2));
  EXPECT_EQ(result.segments.at(0).low, Position(0));
  EXPECT_EQ(result.segments.at(1).position, Position(1));
  request = h.Request(SequenceId(0), {1}, 3);
  EXPECT_EQ(h.Step(request).outcome.code, absl::StatusCode::kInvalidArgument);
}

TEST(EngineOrder, NoSegmentsIsOk) {
  Harness h;
  EXPECT_TRUE(h.Step(StepRequest()).outcome.ok());
}

TEST(EngineOrder, ResetsAndMovesNeedNoTokens) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1, 2, 3}));
  EXPECT_TRUE(h.Step(h.Request(a, {}, 2)).outcome.ok());
  EXPECT_THAT(h.Where(a), ElementsAre(2, 0, 0));
  EXPECT_TRUE(h.Step(h.Request(a, {})).outcome.ok());
  EXPECT_EQ(h.Where(a)[0], 2u);
  StepRequest reset = h.Request(a, {});
  reset.segments[0].fresh = true;
  EXPECT_TRUE(h.Step(reset).outcome.ok());
  EXPECT_THAT(h.Where(a), ElementsAre(0, 0, 0));
}

TEST(EngineOrder, TheStartOfALongStepComesBackThroughTheDevice) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(h.Where(a), ElementsAre(6, 2, 0));
  EXPECT_TRUE(h.Step(h.Request(a, {}, 0)).outcome.ok());
  EXPECT_THAT(h.Where(a), ElementsAre(0, 0, 0));
  const std::vector<RanBatch> ran = h.device->WaitForBatches(2);
  EXPECT_TRUE(ran[0].segments.at(0).ring_to_undo);
  EXPECT_TRUE(ran[1].segments.at(0).undo_to_ring);
  EXPECT_EQ(ran[1].num_tokens, 0u);
}

TEST(EngineOrder, AnswersOfACarryComeInTheOrderOfItsRequests) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  Mutex mutex;
  std::vector<int> order;
  std::vector<Answer<int>> answers(50);
  for (int i = 0; i < 50; ++i) {
    StepRequest request = h.Request(a, {static_cast<uint32_t>(i % 7 == 3 ? 2000 : i)}, std::nullopt);
    if (i % 7 == 4) request.segments[0].fresh = true;
    request.output.allocate = [buffer = std::make_shared<std::vector<std::byte>>()](uint64_t bytes) {
      buffer->resize(bytes);
      return buffer->data();
    };
    h.engine->Submit(std::move(request), [&, i, fn = answers[static_cast<size_t>(i)].fn()](StepResult) {
      {
        MutexLock lock(&mutex);
        order.push_back(i);
      }
      fn(i);
    });
  }
  for (const Answer<int>& answer : answers) answer.Get();
  MutexLock lock(&mutex);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace pleiad
