// Steps that the thread which submits them also completes.
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

// `request` as Harness::Submit gives it to the engine.
StepRequest WithOutput(StepRequest request, std::vector<std::byte>* output) {
  request.output.allocate = [output](uint64_t bytes) {
    output->resize(bytes);
    return output->data();
  };
  return request;
}

TEST(EngineAttend, AnAttendedStepIsAnsweredByThatThreadOnceItsFunctionHasReturned) {
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  std::vector<std::byte> output;
  std::promise<void> submitted;
  std::promise<std::thread::id> answered;
  std::thread attends([&] {
    bool returned = false;
    h.engine->Attend([&] {
      h.engine->Submit(WithOutput(h.Request(a, {1}), &output), [&](const StepResult& result) {
        EXPECT_TRUE(result.outcome.ok());
        EXPECT_TRUE(returned);
        answered.set_value(std::this_thread::get_id());
      });
      returned = true;
      submitted.set_value();
    });
  });
  submitted.get_future().wait();
  h.device->Open();
  EXPECT_EQ(answered.get_future().get(), attends.get_id());
  attends.join();
}

TEST(EngineAttend, WhatComesBehindAnAttendedStepIsCompletedBehindIt) {
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.device->Hold();
  std::promise<void> submitted, go_on;
  std::optional<Answer<StepResult>> first;
  std::thread attends([&] {
    h.engine->Attend([&] {
      first = h.Submit(h.Request(a, {1}));
      submitted.set_value();
      go_on.get_future().wait();
    });
  });
  submitted.get_future().wait();
  Answer<StepResult> second = h.Submit(h.Request(b, {1, 2}));
  h.device->WaitForBatches(2);
  h.device->Open();
  EXPECT_FALSE(first->ready());
  EXPECT_FALSE(second.ready());
  go_on.set_value();
  EXPECT_TRUE(first->Get().outcome.ok());
  EXPECT_TRUE(second.Get().outcome.ok());
  attends.join();
}

TEST(EngineAttend, WhatADeviceAtWorkIsGivenLaterIsNotAttended) {
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> first = h.Submit(h.Request(a, {1}));
  std::optional<Answer<StepResult>> second;
  h.engine->Attend([&] { second = h.Submit(h.Request(b, {1})); });  // does not block
  EXPECT_FALSE(second->ready());
  h.device->Open();
  EXPECT_TRUE(first.Get().outcome.ok());
  EXPECT_TRUE(second->Get().outcome.ok());
}

TEST(EngineAttend, AttendedAndOtherStepsOfManyThreadsAreAllAnsweredInTheOrderOfTheirSequence) {
  constexpr uint64_t kSteps = 300;
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  std::vector<std::thread> threads;
  for (uint32_t caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&h, caller, a = h.Open().sequence] {
      std::vector<Answer<StepResult>> answers;
      for (uint64_t i = 0; i < kSteps; ++i) {
        const auto submit = [&] { answers.push_back(h.Submit(h.Request(a, {1}))); };
        (i + caller) % 3 == 0 ? submit() : h.engine->Attend(submit);
      }
      for (uint64_t i = 0; i < kSteps; ++i) {
        ASSERT_TRUE(answers[i].Get().outcome.ok());
        ASSERT_EQ(answers[i].Get().segments.at(0).position, Position(i + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(EngineAttend, ALostDeviceFailsTheAttendedStep) {
  Harness h({.run_cost = RunCost::kEnqueueing, .pipeline_depth = 2});
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  std::vector<std::byte> output;
  std::promise<StepResult> answer;
  std::promise<void> submitted;
  std::thread attends([&] {
    h.engine->Attend([&] {
      h.engine->Submit(WithOutput(h.Request(a, {1}), &output),
                       [&](StepResult result) { answer.set_value(std::move(result)); });
      submitted.set_value();
    });
  });
  submitted.get_future().wait();
  h.device->Fail(absl::InternalError("gone"));
  h.device->Open();
  EXPECT_EQ(answer.get_future().get().outcome.code, absl::StatusCode::kUnavailable);
  attends.join();
}

}  // namespace
}  // namespace pleiad
