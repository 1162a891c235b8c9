// Steps whose tensors lie in memory of a client: they wait until it is ready, and then run alone.
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

// Counts who asks.
class FakeMemory final : public ClientMemory {
 public:
  std::byte* data() const override { return memory_.data(); }
  uint64_t bytes() const override { return memory_.size(); }
  absl::StatusOr<bool> IsReady() const override {
    MutexLock lock(&mutex_);
    asked_.push_back(std::this_thread::get_id());
    changed_.NotifyAll();
    return ready_;
  }
  void* done_event() const override { return nullptr; }

  void Set(absl::StatusOr<bool> ready) {
    MutexLock lock(&mutex_);
    ready_ = std::move(ready);
  }
  // Blocks until it was asked so often; by whom.
  std::vector<std::thread::id> WaitForAsks(size_t count) {
    MutexLock lock(&mutex_);
    while (asked_.size() < count) changed_.Wait(&mutex_);
    return asked_;
  }

 private:
  mutable std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::vector<std::thread::id> asked_ ABSL_GUARDED_BY(mutex_);
  absl::StatusOr<bool> ready_ ABSL_GUARDED_BY(mutex_) = true;
};

StepRequest InMemory(Harness& h, SequenceId sequence, std::vector<uint32_t> tokens,
                     const std::shared_ptr<FakeMemory>& memory) {
  StepRequest request = h.Request(sequence, std::move(tokens));
  request.memory = TensorMemory::kDevice;
  request.client_memory = {memory};
  return request;
}

// Moves the time on until the step is answered, no faster than the engine follows.
StepResult AdvanceUntil(Harness& h, const Answer<StepResult>& step, absl::Duration by) {
  while (!step.ready()) {
    h.clock.Advance(by);
    h.clock.AwaitWaiterAnew();
  }
  return step.Get();
}

TEST(EngineMemory, AStepInReadyMemoryRunsAtOnceAndNamesItToTheDevice) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  const auto memory = std::make_shared<FakeMemory>();
  EXPECT_TRUE(h.Step(InMemory(h, a, {1, 2}, memory)).outcome.ok());
  const auto ran = h.device->WaitForBatches(1);
  EXPECT_EQ(ran[0].parts.at(0).memory, TensorMemory::kDevice);
  EXPECT_EQ(ran[0].client_memory, std::vector<ClientMemory*>{memory.get()});
  EXPECT_EQ(memory->WaitForAsks(1).size(), 1u);
}

TEST(EngineMemory, StepsInPinnedMemoryShareBatches) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence, c = h.Open().sequence;
  const auto memory = std::make_shared<FakeMemory>();
  h.device->Hold();
  const Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  StepRequest pinned = InMemory(h, b, {1}, memory);
  pinned.memory = TensorMemory::kPinned;
  const Answer<StepResult> second = h.Submit(std::move(pinned));
  const Answer<StepResult> third = h.Submit(h.Request(c, {1}));
  h.device->Open();
  for (const auto* step : {&first, &second, &third}) EXPECT_TRUE(step->Get().outcome.ok());
  const auto ran = h.device->WaitForBatches(2);
  ASSERT_EQ(ran.size(), 2u);
  ASSERT_EQ(ran[1].parts.size(), 2u);
  EXPECT_EQ(ran[1].parts[0].memory, TensorMemory::kPinned);
  EXPECT_EQ(ran[1].parts[1].memory, TensorMemory::kHost);
  EXPECT_EQ(ran[1].client_memory, std::vector<ClientMemory*>{memory.get()});
}

TEST(EngineMemory, AStepWaitsForItsMemoryWhileOthersRun) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  const auto memory = std::make_shared<FakeMemory>();
  memory->Set(false);
  StepRequest request = InMemory(h, a, {1}, memory);
  request.timeout = absl::Hours(24);
  const Answer<StepResult> step = h.Submit(std::move(request));
  memory->WaitForAsks(2);
  EXPECT_TRUE(h.Step(h.Request(b, {1})).outcome.ok());
  EXPECT_EQ(h.device->WaitForBatches(1).size(), 1u);
  EXPECT_FALSE(step.ready());
  memory->Set(true);
  EXPECT_TRUE(AdvanceUntil(h, step, absl::Milliseconds(1)).outcome.ok());
  const auto ran = h.device->WaitForBatches(2);
  EXPECT_EQ(h.Where(a)[0], 1u);
  // Not by the thread that gives batches to the device.
  if (h.engine->device_info().run_cost == RunCost::kEnqueueing) return;
  for (const std::thread::id id : memory->WaitForAsks(3)) EXPECT_NE(id, ran[0].thread);
}

TEST(EngineMemory, MemoryThatIsNotReadyInTimeFailsTheStepAndMovesNothing) {
  for (const absl::Duration timeout : {absl::InfiniteDuration(), absl::Duration(absl::Seconds(7))}) {
    Harness h;
    const SequenceId a = h.Open().sequence;
    const auto memory = std::make_shared<FakeMemory>();
    memory->Set(false);
    StepRequest request = InMemory(h, a, {1}, memory);
    request.timeout = timeout;
    const absl::Time begun = h.clock.Now();
    const Answer<StepResult> step = h.Submit(std::move(request));
    memory->WaitForAsks(2);
    const StepResult result = AdvanceUntil(h, step, absl::Milliseconds(100));
    EXPECT_EQ(result.outcome.code, absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(result.outcome.message.find("ready event"), std::string::npos) << result.outcome.message;
    EXPECT_GE(h.clock.Now() - begun, timeout == absl::InfiniteDuration() ? absl::Seconds(5) : timeout);
    EXPECT_EQ(h.Where(a)[0], 0u);
    EXPECT_EQ(h.rows->held_plans(), 0u);
    EXPECT_TRUE(h.Step(h.Request(a, {1}, 0)).outcome.ok());
    EXPECT_EQ(h.device->WaitForBatches(1).size(), 1u);
  }
}

TEST(EngineMemory, TheTimeToBecomeReadyIsNotTheTimeToRun) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence, c = h.Open().sequence;
  const auto memory = std::make_shared<FakeMemory>(), other = std::make_shared<FakeMemory>();
  memory->Set(false);
  other->Set(false);
  h.device->Hold();
  const Answer<StepResult> before = h.Submit(h.Request(b, {1}));
  h.device->WaitForBatches(1);
  const Answer<StepResult> step = h.Submit(InMemory(h, a, {1}, memory));
  memory->WaitForAsks(2);
  memory->Set(true);
  // A later step that was asked for twice: the first has been taken for ready by then.
  StepRequest late = InMemory(h, c, {1}, other);
  late.timeout = absl::Seconds(4);
  const Answer<StepResult> never = h.Submit(std::move(late));
  EXPECT_EQ(AdvanceUntil(h, never, absl::Milliseconds(1)).outcome.code, absl::StatusCode::kDeadlineExceeded);
  h.clock.Advance(absl::Seconds(60));
  EXPECT_FALSE(step.ready());
  h.device->Open();
  EXPECT_TRUE(before.Get().outcome.ok());
  EXPECT_TRUE(step.Get().outcome.ok());
}

TEST(EngineMemory, CancelAndStopEndTheWait) {
  for (const bool stop : {false, true}) {
    Harness h;
    const SequenceId a = h.Open().sequence, b = h.Open().sequence;
    const auto memory = std::make_shared<FakeMemory>();
    memory->Set(false);
    StepId id;
    const Answer<StepResult> step = h.Submit(InMemory(h, a, {1}, memory), &id);
    memory->WaitForAsks(2);
    if (stop) {
      EXPECT_EQ(h.engine->Stop(), 1u);
    } else {
      h.engine->Cancel(id);
    }
    EXPECT_EQ(step.Get().outcome.code, stop ? absl::StatusCode::kUnavailable : absl::StatusCode::kCancelled);
    if (stop) continue;
    // Ready too late; another step is asked for meanwhile.
    memory->Set(true);
    const auto other = std::make_shared<FakeMemory>();
    other->Set(false);
    StepRequest late = InMemory(h, b, {1}, other);
    late.timeout = absl::Seconds(1);
    EXPECT_FALSE(AdvanceUntil(h, h.Submit(std::move(late)), absl::Milliseconds(1)).outcome.ok());
    EXPECT_TRUE(h.Step(h.Request(a, {1}, 0)).outcome.ok());
    EXPECT_EQ(h.device->WaitForBatches(1).size(), 1u);
  }
}

TEST(EngineMemory, AnEventThatCannotBeAskedFailsTheStep) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  const auto memory = std::make_shared<FakeMemory>();
  memory->Set(absl::FailedPreconditionError("the event is gone"));
  EXPECT_EQ(h.Step(InMemory(h, a, {1}, memory)).outcome.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(h.Where(a)[0], 0u);
}

TEST(EngineMemory, AStepInMemoryRunsAloneAndIsHeldUntilItIsDone) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence, c = h.Open().sequence, d = h.Open().sequence;
  auto memory = std::make_shared<FakeMemory>();
  const std::weak_ptr<FakeMemory> seen = memory;
  h.device->Hold();
  const Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  const Answer<StepResult> before = h.Submit(h.Request(b, {1}));
  const Answer<StepResult> in_memory = h.Submit(InMemory(h, c, {1}, memory));
  const Answer<StepResult> after = h.Submit(h.Request(d, {1}));
  memory = nullptr;  // its stream is gone
  EXPECT_FALSE(seen.expired());
  h.device->Open();
  for (const auto* step : {&first, &before, &in_memory, &after}) EXPECT_TRUE(step->Get().outcome.ok());
  const auto ran = h.device->WaitForBatches(4);
  ASSERT_EQ(ran.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ran[i].client_memory.size(), i == 2 ? 1u : 0u) << i;
  h.engine->Stop();
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace pleiad
