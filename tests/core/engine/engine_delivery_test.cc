// Outputs that are brought to where they are wanted before their step ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;

// Of 32 bytes each.
constexpr uint32_t kSmall = 3, kLarge = 10'000;

StepRequest Delivering(Harness& h, SequenceId sequence, uint32_t tokens,
                       std::function<std::optional<Outcome>()> deliver) {
  StepRequest request = h.Request(sequence, std::vector<uint32_t>(tokens, 1));
  request.output.deliver = std::move(deliver);
  return request;
}

std::optional<Outcome> Lost() {
  return Failed(absl::StatusCode::kDataLoss, "lost", MakeDetail(Reason::kInvalidField, "output.region", "", "lost"));
}

class EngineDeliveryTest : public ::testing::TestWithParam<std::tuple<uint32_t, RunCost>> {
 protected:
  uint32_t tokens() const { return std::get<0>(GetParam()); }
  Harness h_{{.max_tokens = 1 << 16, .run_cost = std::get<1>(GetParam())}};
};
INSTANTIATE_TEST_SUITE_P(All, EngineDeliveryTest,
                         ::testing::Combine(::testing::Values(kSmall, kLarge),
                                            ::testing::Values(RunCost::kTheWork, RunCost::kEnqueueing)));

TEST_P(EngineDeliveryTest, TheOutputIsThereAndTheStepNotYetCommitted) {
  const SequenceId a = h_.Open().sequence;
  int deliveries = 0;
  Answer<GetSequenceResult> get;
  const StepResult result = h_.Step(Delivering(h_, a, tokens(), [&]() -> std::optional<Outcome> {
    ++deliveries;
    get = h_.SubmitGet(a);
    EXPECT_FALSE(get.ready());
    return std::nullopt;
  }));
  EXPECT_TRUE(result.outcome.ok());
  EXPECT_EQ(deliveries, 1);
  EXPECT_EQ(get.Get().layers[0].position, Position(tokens()));
}

TEST_P(EngineDeliveryTest, AStepWhoseOutputIsLostHasFailedForThoseBehindItToo) {
  const SequenceId a = h_.Open().sequence, released = h_.Open().sequence;
  h_.device->Hold();
  StepRequest step = Delivering(h_, a, tokens(), Lost);
  step.release_after = {released};
  Answer<StepResult> lost = h_.Submit(std::move(step));
  h_.device->WaitForBatches(1);
  Answer<StepResult> behind = h_.Submit(h_.Request(a, {2}));
  h_.device->Open();
  EXPECT_EQ(lost.Get().outcome.code, absl::StatusCode::kDataLoss);
  EXPECT_TRUE(lost.Get().segments.empty());
  ASSERT_EQ(behind.Get().outcome.details.size(), 1u);
  EXPECT_EQ(behind.Get().outcome.details[0].reason, Reason::kPredecessorFailed);
  EXPECT_EQ(behind.Get().outcome.details[0].position, Position(tokens()));
  EXPECT_TRUE(h_.Get(released).outcome.ok());
  // It was applied, and can be sent again.
  EXPECT_EQ(h_.Where(a)[2], 0u);
  StepRequest again = Delivering(h_, a, tokens(), [] { return std::nullopt; });
  again.segments[0].position = Position(0);
  EXPECT_TRUE(h_.Step(std::move(again)).outcome.ok());
  EXPECT_TRUE(h_.Step(h_.Request(a, {2})).outcome.ok());
  EXPECT_EQ(h_.Where(a)[0], tokens() + 1);
}

TEST_P(EngineDeliveryTest, WhatIsBeingDeliveredWhenTheEngineStopsIsAnswered) {
  const SequenceId a = h_.Open().sequence;
  std::promise<void> begun, go_on;
  Answer<StepResult> answer;
  std::thread client([&] {
    answer = h_.Submit(Delivering(h_, a, tokens(), [&]() -> std::optional<Outcome> {
      begun.set_value();
      go_on.get_future().wait();
      return std::nullopt;
    }));
  });
  begun.get_future().wait();
  std::thread stop([&] { EXPECT_EQ(h_.engine->Stop(), 0u); });
  go_on.set_value();
  stop.join();
  client.join();
  EXPECT_TRUE(answer.Get().outcome.ok());
}

TEST(EngineDelivery, StepsOfOthersDoNotWaitForALargeOutput) {
  Harness h({.max_tokens = 1 << 16});
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  std::promise<void> begun, go_on;
  Answer<StepResult> slow = h.Submit(Delivering(h, a, kLarge, [&]() -> std::optional<Outcome> {
    begun.set_value();
    go_on.get_future().wait();
    return std::nullopt;
  }));
  begun.get_future().wait();
  EXPECT_TRUE(h.Step(h.Request(b, {1})).outcome.ok());
  EXPECT_TRUE(h.Step(Delivering(h, b, kSmall, [] { return std::nullopt; })).outcome.ok());
  EXPECT_FALSE(slow.ready());
  go_on.set_value();
  EXPECT_TRUE(slow.Get().outcome.ok());
}

TEST(EngineDelivery, TheDeviceGoesOnWhileASmallOutputIsDelivered) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  std::promise<void> begun, go_on;
  Answer<StepResult> slow;
  std::thread client([&] {
    slow = h.Submit(Delivering(h, a, kSmall, [&]() -> std::optional<Outcome> {
      begun.set_value();
      go_on.get_future().wait();
      return std::nullopt;
    }));
  });
  begun.get_future().wait();
  Answer<StepResult> next = h.Submit(h.Request(b, {1}));
  h.device->WaitForBatches(2);
  EXPECT_FALSE(next.ready());
  go_on.set_value();
  client.join();
  EXPECT_TRUE(slow.Get().outcome.ok());
  EXPECT_TRUE(next.Get().outcome.ok());
}

TEST(EngineDelivery, ALostOutputLeavesAPrestageThatItUsedUpInOrder) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  StepRequest prestage = h.Request(a, {1, 2, 3});
  prestage.mode = StepMode::kPrestage;
  prestage.input = {};
  ASSERT_TRUE(h.Step(std::move(prestage)).outcome.ok());
  StepRequest step = h.Request(a, {1, 2});
  step.output.deliver = Lost;
  EXPECT_EQ(h.Step(std::move(step)).outcome.code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(h.Get(a).layers[0].prestaged_tokens, 1u);
  EXPECT_TRUE(h.Step(h.Request(a, {3}, 2)).outcome.ok());
  EXPECT_THAT(h.Where(a), ElementsAre(3, 0, 2));
}

}  // namespace
}  // namespace pleiad
