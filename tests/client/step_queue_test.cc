#include "client/internal/step_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/error_info.h"
#include "tests/client/step_queue_fixture.h"

namespace pleiad::client::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST_F(StepQueueTest, EveryStepCarriesThePositionItStartsAt) {
  Sequence sequence = Open();
  Add(sequence, 3);
  Add(sequence, 4);
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  EXPECT_EQ(SentPosition(1), 0u);
  EXPECT_EQ(SentPosition(2), 3u);
  Succeed(1);
  Succeed(2);
  EXPECT_EQ(sequence.position(1), 7u);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(3));
  EXPECT_EQ(SentPosition(3), 7u);
}

TEST_F(StepQueueTest, SeveralShortStepsOfAtMostRollbackTokensAreUnansweredTogether) {
  Sequence sequence = Open();
  Add(sequence, 5);
  Add(sequence, 3);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(1, 2));  // 8 tokens; a ninth waits
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(3));
}

TEST_F(StepQueueTest, ALongStepIsUnansweredAlone) {
  Sequence sequence = Open();
  Add(sequence, 9);
  Add(sequence, 1);
  Add(sequence, 20);
  EXPECT_THAT(Send(), ElementsAre(1));
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(2));
  Succeed(2);
  EXPECT_THAT(Send(), ElementsAre(3));
}

TEST_F(StepQueueTest, WithoutRollbackEveryStepIsUnansweredAlone) {
  model_.rollback_tokens = 0;
  Sequence sequence = Open();
  Add(sequence, 1);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(1));
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(2));
}

TEST_F(StepQueueTest, OtherCarriesAreNotHeldBack) {
  Sequence first = Open(), second = Open();
  Add(first, 20);
  Add(first, 20);
  Add(second, 20);
  EXPECT_THAT(Send(), ElementsAre(1, 3));
}

TEST_F(StepQueueTest, AStepOfSeveralSequencesWaitsForAllOfItsCarriesAndIsNotOvertaken) {
  Sequence first = Open(), second = Open();
  Add(first, 20);
  AddSegments({{&first, 1}, {&second, 1}});
  Add(second, 1);
  EXPECT_THAT(Send(), ElementsAre(1));
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(2, 3));
}

TEST_F(StepQueueTest, AMoveBelowAnUnansweredStartWaitsBecauseTheStartWouldBeOutOfReach) {
  Sequence sequence = Open();
  Add(sequence, 6);
  Send();
  Succeed(1);
  Add(sequence, 2);     // 6 to 8
  Add(sequence, 0, 5);  // then the start at 6 is past the end of the carry
  EXPECT_THAT(Send(), ElementsAre(2));
  Succeed(2);
  EXPECT_THAT(Send(), ElementsAre(3));
}

TEST_F(StepQueueTest, ARewindBelowAnUnansweredStartWaitsBecauseTheStartWouldFollowOtherTokens) {
  Sequence sequence = Open();
  Add(sequence, 6);
  Send();
  Succeed(1);
  Add(sequence, 2);     // 6 to 8
  Add(sequence, 1, 5);  // ends at 6, which is then in reach, behind another token
  EXPECT_THAT(Send(), ElementsAre(2));
  Succeed(2);
  EXPECT_THAT(Send(), ElementsAre(3));
}

TEST_F(StepQueueTest, AResetWaitsForUnansweredStepsEvenAtPositionZero) {
  Sequence sequence = Open();
  Add(sequence, 1);
  Add(sequence, 1, std::nullopt, /*fresh=*/true);
  EXPECT_THAT(Send(), ElementsAre(1));
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(2));
}

TEST_F(StepQueueTest, AMoveToAnUnansweredStartNeedNotWait) {
  Sequence sequence = Open();
  Add(sequence, 6);
  Add(sequence, 0, 4);
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  EXPECT_EQ(SentPosition(2), 4u);
}

TEST_F(StepQueueTest, NothingFollowsAnUnansweredRewindWithTokens) {
  Sequence sequence = Open();
  Add(sequence, 6);
  Send();
  Succeed(1);
  Add(sequence, 1, 3);
  Add(sequence, 1);  // were the rewind refused, 4 would be reachable, on the tokens it was to replace
  EXPECT_THAT(Send(), ElementsAre(2));
  Succeed(2);
  EXPECT_THAT(Send(), ElementsAre(3));
  EXPECT_EQ(SentPosition(3), 4u);
}

TEST_F(StepQueueTest, FreshStartsAtZero) {
  Sequence sequence = Open();
  Add(sequence, 6);
  Send();
  Succeed(1);
  Add(sequence, 2, std::nullopt, /*fresh=*/true);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(2));
  EXPECT_EQ(SentPosition(2), 0u);
  EXPECT_TRUE(sent_.at(2).segments[0].fresh);
  Succeed(2);
  EXPECT_THAT(Send(), ElementsAre(3));
  EXPECT_EQ(SentPosition(3), 2u);
}

TEST_F(StepQueueTest, AFailedStepFailsItsFollowersUntilOneNamesItsStart) {
  Sequence sequence = Open();
  Add(sequence, 9);
  Add(sequence, 9);
  Add(sequence, 1);
  Add(sequence, 1, 9);
  Add(sequence, 1);
  Send();
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(2));
  Fail(2);
  EXPECT_THAT(failed_, ElementsAre(2, 3));
  EXPECT_EQ(ErrorReason(last_), Reason::kPredecessorFailed);
  ASSERT_FALSE(ErrorDetails(last_).empty());
  EXPECT_EQ(ErrorDetails(last_)[0].position, 9u);
  EXPECT_THAT(Send(), ElementsAre(4, 5));
  EXPECT_EQ(SentPosition(5), 10u);
}

TEST_F(StepQueueTest, AStepSubmittedAfterAFailureMustNameItsStartToo) {
  Sequence sequence = Open();
  Add(sequence, 1);
  Send();
  Fail(1);
  Add(sequence, 1);
  EXPECT_THAT(failed_, ElementsAre(1, 2));
  Add(sequence, 1, sequence.position(1));
  EXPECT_THAT(Send(), ElementsAre(3));
  Succeed(3);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(4));
}

TEST_F(StepQueueTest, AFailureReachesTheCarriesOfAFollowerInTheirOrder) {
  Sequence first = Open(), second = Open();
  Add(second, 20);
  Add(first, 1);
  AddSegments({{&first, 1}, {&second, 1}});
  Add(second, 1);
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  Fail(2);
  EXPECT_THAT(failed_, ElementsAre(2));  // the third waits for its turn on the second carry
  Succeed(1);
  EXPECT_THAT(failed_, ElementsAre(2, 3, 4));
}

TEST_F(StepQueueTest, AStepRefusedHereFailsInItsTurnAndFailsItsFollowers) {
  Sequence sequence = Open();
  Add(sequence, 9);
  AddSegments({{&sequence, 1}, {&sequence, 1}});
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(1));
  EXPECT_THAT(failed_, IsEmpty());
  Succeed(1);
  EXPECT_THAT(failed_, ElementsAre(2, 3));
  EXPECT_THAT(Send(), IsEmpty());
}

TEST_F(StepQueueTest, AMessageThatWouldEndTheStreamIsRefusedHere) {
  model_.max_message_bytes = 1 << 10;
  const std::vector<std::byte> highway(4 << 10);
  Step step;
  step.highway.data = highway;
  queue_->Add(std::move(step), [this](absl::StatusOr<StepResult> result) { last_ = result.status(); });
  Deliver();
  EXPECT_TRUE(absl::IsInvalidArgument(last_)) << last_;
  EXPECT_EQ(ErrorReason(last_), Reason::kTooManyTokens);
}

TEST_F(StepQueueTest, AMovedFromHandleIsRefused) {
  Sequence sequence = Open();
  Sequence other = std::move(sequence);
  Add(sequence, 1);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(absl::IsFailedPrecondition(last_)) << last_;
  EXPECT_EQ(queue_->unanswered(), 0u);
}

TEST_F(StepQueueTest, TheLayerMustBeNamedWhereThereAreSeveral) {
  model_.layers.push_back(LayerInfo{5, 100, "BF16", 10});
  Sequence sequence = Open();
  Add(sequence, 1);
  EXPECT_EQ(ErrorReason(last_), Reason::kLayerUnknown);
}

TEST_F(StepQueueTest, APrestageMovesNothingAndIsNotHeldBack) {
  Sequence sequence = Open();
  Add(sequence, 20);
  Add(sequence, 20, std::nullopt, /*fresh=*/false, StepMode::kPrestage);
  Add(sequence, 20);
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  EXPECT_EQ(SentPosition(2), 20u);
  Fail(2);
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(3));
  EXPECT_EQ(SentPosition(3), 20u);
}

TEST_F(StepQueueTest, ABreakSendsTheUnansweredStepsAgainInOrderUnderAHigherEpoch) {
  Sequence sequence = Open();
  Add(sequence, 2);
  Add(sequence, 3);
  Add(sequence, 4);
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  const uint64_t epoch = sent_.at(1).epoch;
  EXPECT_GT(epoch, 0u);
  queue_->Break();
  EXPECT_THAT(Send(), ElementsAre(1, 2));
  EXPECT_GT(sent_.at(1).epoch, epoch);
  EXPECT_EQ(SentPosition(2), 2u);
  Succeed(1);
  EXPECT_THAT(Send(), ElementsAre(3));
}

TEST_F(StepQueueTest, AnAnsweredStepIsNotSentAgain) {
  Sequence sequence = Open();
  Add(sequence, 2);
  Add(sequence, 3);
  Send();
  Succeed(1);
  queue_->Break();
  EXPECT_THAT(Send(), ElementsAre(2));
  Succeed(1);  // a second answer is nobody's
  EXPECT_THAT(succeeded_, ElementsAre(1));
}

TEST_F(StepQueueTest, ATakenOverSequenceIsSteppedAboveItsEpochAndOnlyOnceNothingIsUnanswered) {
  ON_CALL(*connection_, GetSequence).WillByDefault([](SequenceId, uint64_t) {
    SequenceStatus status;
    status.epoch = 41;
    status.layers.push_back({1, 30, 22, 29, 0});
    return status;
  });
  Sequence own = Open();
  Sequence taken = *client_->Attach(SequenceId{7});
  Add(own, 1);
  EXPECT_THAT(Send(), ElementsAre(1));
  Add(taken, 1);
  Add(own, 1);
  EXPECT_THAT(Send(), IsEmpty());  // a higher epoch would end the unanswered step
  Succeed(1);
  EXPECT_THAT(Send(), UnorderedElementsAre(2, 3));
  EXPECT_EQ(sent_.at(2).epoch, 42u);
  EXPECT_EQ(SentPosition(2), 30u);
}

TEST_F(StepQueueTest, ASequenceThatMovesToAnotherStreamGetsAHigherEpochThere) {
  Sequence sequence = Open();
  Add(sequence, 2);
  Send();
  Succeed(1);
  const uint64_t epoch = sent_.at(1).epoch;
  queue_ = std::make_unique<StepQueue>(model_);
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(1));
  EXPECT_GT(sent_.at(1).epoch, epoch);
  EXPECT_EQ(SentPosition(1), 2u);
}

TEST_F(StepQueueTest, FailAllAnswersEverythingInOrder) {
  Sequence first = Open(), second = Open();
  Add(first, 20);
  Add(second, 1);
  Add(first, 1);
  Send();
  queue_->FailAll(absl::UnavailableError("gone"));
  Deliver();
  EXPECT_THAT(failed_, ElementsAre(1, 2, 3));
  EXPECT_EQ(queue_->unanswered(), 0u);
  EXPECT_THAT(Send(), IsEmpty());
}

}  // namespace
}  // namespace pleiad::client::internal
