// Sequences that leave one engine and go on in another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/core/engine/harness.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;

std::vector<KeptSequence> Give(Engine& engine) {
  engine.Stop();
  std::vector<KeptSequence> given;
  EXPECT_THAT(engine.GiveSequences([&given](const KeptSequence& kept) {
    given.push_back(kept);
    return absl::OkStatus();
  }),
              IsOk());
  EXPECT_EQ(given.size(), engine.stats().sequences);
  return given;
}

absl::StatusOr<uint64_t> Take(Engine& engine, std::vector<KeptSequence> sequences) {
  size_t next = 0;
  return engine.TakeSequences([&]() -> absl::StatusOr<std::optional<KeptSequence>> {
    if (next == sequences.size()) return std::nullopt;
    return std::move(sequences[next++]);
  });
}

OpenRequest Named(std::string key, std::string label) {
  OpenRequest request;
  request.client_key = std::move(key);
  request.label = std::move(label);
  return request;
}

TEST(EngineKeep, SequencesGoOnWhereTheyStood) {
  Harness old_engine({.layers = 2}), h({.layers = 2});
  const SequenceId a = old_engine.Open(Named("key", "label")).sequence, b = old_engine.Open().sequence;
  old_engine.Step(old_engine.Request(a, {1, 2}));
  old_engine.Step(old_engine.Request(a, std::vector<uint32_t>(9, 3)));
  StepRequest step = old_engine.Request(a, {5});
  step.epoch = 6;
  step.segments[0].position = Position(9);
  old_engine.Step(std::move(step));
  const std::vector<uint64_t> where = old_engine.Where(a);
  old_engine.clock.Advance(absl::Minutes(4));
  old_engine.Step(old_engine.Request(b, {1}));

  ASSERT_THAT(Take(*h.engine, Give(*old_engine.engine)), IsOk());
  EXPECT_EQ(h.engine->stats().sequences, 2u);
  EXPECT_EQ(h.Where(a), where);
  EXPECT_EQ(h.Get(a).epoch, 6u);
  EXPECT_EQ(h.Get(a).layers.at(1).position, Position(0));
  EXPECT_EQ(h.Get(a).idle, absl::Minutes(4));
  EXPECT_EQ(h.Get(b).idle, absl::ZeroDuration());
  EXPECT_THAT(h.Where(b), ElementsAre(1, 0, 0));
  const OpenResult again = h.Open(Named("key", ""));
  EXPECT_TRUE(again.existing);
  EXPECT_EQ(again.sequence, a);
  StepRequest late = h.Request(a, {1});
  late.epoch = 5;
  EXPECT_EQ(h.Step(std::move(late)).outcome.code, absl::StatusCode::kAborted);
  EXPECT_EQ(h.Step(h.Request(a, {1}, 7)).segments.at(0).position, Position(8));
  EXPECT_EQ(h.Release(b).released, true);
}

TEST(EngineKeep, OwnersAreGivenAndThePlacesThatTheyTakeAreHeldUntilTheRelease) {
  Harness old_engine, h;
  OpenRequest open = Named("", "");
  open.owner = "engine-3";
  const SequenceId a = old_engine.Open(open).sequence, b = old_engine.Open().sequence;
  std::vector<KeptSequence> given = Give(*old_engine.engine);
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].owner, "engine-3");
  EXPECT_EQ(given[1].owner, "");
  const auto place = std::make_shared<int>();
  given[0].place = place;
  ASSERT_THAT(Take(*h.engine, std::move(given)), IsOk());
  EXPECT_TRUE(h.Release(b).released);
  EXPECT_EQ(place.use_count(), 2);
  EXPECT_TRUE(h.Release(a).released);
  EXPECT_EQ(place.use_count(), 1);
}

TEST(EngineKeep, TheStartOfALongStepIsHadFromUndoRowsThatMoved) {
  Harness old_engine, h;
  const SequenceId a = old_engine.Open().sequence;
  old_engine.Step(old_engine.Request(a, {1, 2}));
  old_engine.Step(old_engine.Request(a, std::vector<uint32_t>(9, 3)));
  ASSERT_THAT(Take(*h.engine, Give(*old_engine.engine)), IsOk());
  EXPECT_TRUE(h.Step(h.Request(a, {4}, 2)).outcome.ok());
  EXPECT_TRUE(h.device->WaitForBatches(1).at(0).segments.at(0).undo_to_ring);
  EXPECT_THAT(h.Where(a), ElementsAre(3, 2, 2));
}

TEST(EngineKeep, AFailedStepStaysFailed) {
  Harness old_engine, h;
  const SequenceId a = old_engine.Open().sequence;
  old_engine.Step(old_engine.Request(a, {1, 2}));
  EXPECT_FALSE(old_engine.Step(old_engine.Request(a, {1}, 77)).outcome.ok());
  ASSERT_THAT(Take(*h.engine, Give(*old_engine.engine)), IsOk());
  const StepResult behind = h.Step(h.Request(a, {3}));
  ASSERT_EQ(behind.outcome.details.size(), 1u);
  EXPECT_EQ(behind.outcome.details[0].reason, Reason::kPredecessorFailed);
  EXPECT_TRUE(h.Step(h.Request(a, {3}, 2)).outcome.ok());
}

// The step is on the device when the engine stops, the one behind it is not.
TEST(EngineKeep, WhatHadBegunIsInItAndWhatHadNotIsNot) {
  Harness old_engine, h;
  const SequenceId a = old_engine.Open().sequence, released = old_engine.Open().sequence;
  old_engine.device->Hold();
  Answer<StepResult> begun = old_engine.Submit(old_engine.Request(a, {1, 2}));
  old_engine.device->WaitForBatches(1);
  Answer<StepResult> behind = old_engine.Submit(old_engine.Request(a, {3}));
  Answer<StepResult> last = old_engine.Submit(old_engine.Request(released, {4}));
  Answer<ReleaseResult> release;
  old_engine.engine->Release(released, 0, release.fn());
  std::thread stop([&] { old_engine.engine->Stop(); });
  EXPECT_EQ(last.Get().outcome.code, absl::StatusCode::kUnavailable);
  old_engine.device->Open();
  stop.join();
  EXPECT_TRUE(begun.Get().outcome.ok());
  EXPECT_EQ(behind.Get().outcome.code, absl::StatusCode::kUnavailable);
  const std::vector<KeptSequence> given = Give(*old_engine.engine);
  ASSERT_EQ(given.size(), 1u) << "a sequence whose release has come is not kept";
  ASSERT_THAT(Take(*h.engine, given), IsOk());
  EXPECT_THAT(h.Where(a), ElementsAre(2, 0, 0));
}

TEST(EngineKeep, TakesAllOrNone) {
  Harness old_engine({.layers = 2}), h({.layers = 2, .max_sequences = 2});
  for (const char* key : {"a", "b", "c"}) old_engine.Open(Named(key, ""));
  const std::vector<KeptSequence> good = Give(*old_engine.engine);
  EXPECT_THAT(Take(*h.engine, good), FailsWith(absl::StatusCode::kResourceExhausted, "more than 2"));
  const auto broken = [&](void (*change)(KeptSequence&)) {
    std::vector<KeptSequence> two(good.begin(), good.begin() + 2);
    change(two[1]);
    return Take(*h.engine, std::move(two)).status();
  };
  EXPECT_TRUE(absl::IsDataLoss(broken([](KeptSequence& s) { s.id = SequenceId(0); })));
  EXPECT_TRUE(absl::IsDataLoss(broken([](KeptSequence& s) { s.client_key = "a"; })));
  EXPECT_TRUE(absl::IsDataLoss(broken([](KeptSequence& s) { s.carries.pop_back(); })));
  EXPECT_TRUE(absl::IsDataLoss(broken([](KeptSequence& s) { s.carries[1].state.history[0] = 1000; })));
  h.device->Fail(absl::InternalError("lost"));
  EXPECT_TRUE(absl::IsInternal(broken([](KeptSequence&) {})));
  h.device->Fail(absl::OkStatus());
  int asked = 0;
  EXPECT_THAT(h.engine->TakeSequences([&]() -> absl::StatusOr<std::optional<KeptSequence>> {
    if (++asked == 2) return absl::DataLossError("torn");
    return good[0];
  }),
              FailsWith(absl::StatusCode::kDataLoss, "torn"));
  EXPECT_EQ(h.engine->stats().sequences, 0u);
  EXPECT_EQ(h.engine->stats().sequences_opened, 0u);
  EXPECT_THAT(Take(*h.engine, {good[1], good[2]}), IsOk());
  EXPECT_EQ(h.engine->stats().sequences, 2u);
}

// Says until when the last one waits that began to.
class DeadlineClock : public FakeClock {
 public:
  void WaitUntil(CondVar* cv, Mutex* mutex, absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    {
      MutexLock lock(&deadline_mutex_);
      deadline_ = deadline;
      changed_.NotifyAll();
    }
    FakeClock::WaitUntil(cv, mutex, deadline);
  }
  void AwaitDeadline(absl::Time deadline) {
    MutexLock lock(&deadline_mutex_);
    while (deadline_ != deadline) changed_.Wait(&deadline_mutex_);
  }

 private:
  Mutex deadline_mutex_;
  CondVar changed_;
  absl::Time deadline_ ABSL_GUARDED_BY(deadline_mutex_);
};

TEST(EngineKeep, TheIdleTimeSoFarCounts) {
  Harness old_engine;
  DeadlineClock clock;
  Harness h({.clock = &clock});
  const SequenceId a = old_engine.Open().sequence;
  old_engine.clock.Advance(absl::Minutes(7));
  const SequenceId b = old_engine.Open().sequence;
  clock.AwaitDeadline(clock.Now() + absl::Minutes(10));
  ASSERT_THAT(Take(*h.engine, Give(*old_engine.engine)), IsOk());
  clock.AwaitDeadline(clock.Now() + absl::Minutes(3));
  clock.Advance(absl::Minutes(3));
  clock.AwaitWaiterAnew();
  EXPECT_EQ(h.Get(a).outcome.code, absl::StatusCode::kNotFound);
  EXPECT_TRUE(h.Get(b).outcome.ok());
}

TEST(EngineKeep, NothingIsGivenBeforeTheStopOrOfALostDevice) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  const auto never = [](const KeptSequence&) { return absl::InternalError("given"); };
  EXPECT_THAT(h.engine->GiveSequences(never), FailsWith(absl::StatusCode::kFailedPrecondition, "not stopped"));
  h.device->Fail(absl::InternalError("the device broke"));
  h.Step(h.Request(a, {1}));
  h.engine->Stop();
  EXPECT_THAT(h.engine->GiveSequences(never), FailsWith(absl::StatusCode::kInternal, "the device broke"));
}

TEST(EngineKeep, AnErrorOfTheSinkEndsTheGiving) {
  Harness h;
  h.Open();
  h.Open();
  h.engine->Stop();
  int given = 0;
  EXPECT_THAT(h.engine->GiveSequences([&given](const KeptSequence&) {
    ++given;
    return absl::UnavailableError("disk full");
  }),
              FailsWith(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_EQ(given, 1);
}

}  // namespace
}  // namespace pleiad
