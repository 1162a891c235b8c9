// Deadlines, cancellation and idle sequences, on a clock that the tests move.
#include <gtest/gtest.h>

#include <future>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

TEST(EngineTime, AStepWhoseTimePassesWhileItsRowsAreReadHasNoEffect) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.rows->Hold();
  StepRequest request = h.Request(a, {1});
  request.timeout = absl::Milliseconds(100);
  Answer<StepResult> step = h.Submit(request);
  h.rows->WaitForWaiters(1);
  EXPECT_FALSE(step.ready());
  h.clock.Advance(absl::Milliseconds(100));
  EXPECT_EQ(step.Get().outcome.code, absl::StatusCode::kDeadlineExceeded);
  h.rows->Answer(absl::OkStatus());
  EXPECT_EQ(h.Where(a)[0], 0u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
  EXPECT_TRUE(h.Step(h.Request(a, {1}, 0)).outcome.ok());
}

TEST(EngineTime, AQueuedStepFailsAtItsTurn) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  StepRequest request = h.Request(a, {2});
  request.timeout = absl::Milliseconds(100);
  Answer<StepResult> queued = h.Submit(request);
  h.clock.Advance(absl::Seconds(1));
  h.device->Open();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_EQ(queued.Get().outcome.code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(h.Where(a)[0], 1u);
}

TEST(EngineTime, AStepPastRefusalCompletesThoughItsTimePasses) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  StepRequest request = h.Request(a, {1});
  request.timeout = absl::Milliseconds(100);
  StepId id;
  Answer<StepResult> step = h.Submit(request, &id);
  h.device->WaitForBatches(1);
  h.clock.Advance(absl::Seconds(1));
  h.engine->Cancel(id);
  h.device->Open();
  EXPECT_TRUE(step.Get().outcome.ok());
  EXPECT_EQ(h.Where(a)[0], 1u);
}

TEST(EngineTime, CancelBeforeTheDeviceHasNoEffect) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  StepId ready, queued;
  Answer<StepResult> second = h.Submit(h.Request(b, {1}), &ready);
  Answer<StepResult> third = h.Submit(h.Request(b, {2}, 0), &queued);
  h.engine->Cancel(ready);
  h.engine->Cancel(queued);
  h.engine->Cancel(StepId(999));
  EXPECT_EQ(second.Get().outcome.code, absl::StatusCode::kCancelled);
  EXPECT_EQ(third.Get().outcome.code, absl::StatusCode::kCancelled);
  h.device->Open();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_EQ(h.Where(b)[0], 0u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
}

TEST(EngineTime, IdleSequencesExpireAndUsedOnesDoNot) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.clock.Advance(absl::Minutes(9));
  h.Step(h.Request(a, {1}));
  h.Get(b);  // does not count as use
  h.clock.Advance(absl::Minutes(2));
  EXPECT_TRUE(h.Get(a).outcome.ok());
  EXPECT_EQ(h.Get(a).idle, absl::Minutes(2));
  // Nobody but the clock ends `b`; an engine that drains says when nothing is open.
  std::promise<void> idle;
  h.engine->StartDraining();
  h.engine->NotifyWhenIdle([&idle] { idle.set_value(); });
  EXPECT_TRUE(h.Release(a).released);
  idle.get_future().wait();
  EXPECT_EQ(h.Get(b).outcome.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(h.engine->stats().closed_expired, 1u);
  EXPECT_EQ(h.engine->stats().closed_released, 1u);
}

TEST(EngineTime, ASequenceWithAStepQueuedDoesNotExpire) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> step = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  h.clock.Advance(absl::Hours(1));
  h.device->Open();
  EXPECT_TRUE(step.Get().outcome.ok());
  EXPECT_TRUE(h.Get(a).outcome.ok());
}

}  // namespace
}  // namespace pleiad
