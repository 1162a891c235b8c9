// Opening, snapshots, restores, releases, stopping, a lost device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;

Reason ReasonOf(const Outcome& outcome) {
  return outcome.details.empty() ? Reason::kUnspecified : outcome.details[0].reason;
}

OpenRequest Keyed(std::string key) {
  OpenRequest request;
  request.client_key = std::move(key);
  return request;
}

TEST(EngineSequence, AFullPoolAnswersAtOnceAndTakesReleasedPlaces) {
  Harness h({.max_sequences = 2});
  const SequenceId a = h.Open().sequence;
  h.Open();
  const OpenResult full = h.Open();
  EXPECT_EQ(full.outcome.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full.outcome), Reason::kCarriesFull);
  EXPECT_TRUE(h.Release(a).released);
  EXPECT_TRUE(h.Open().outcome.ok());
}

TEST(EngineSequence, ALiveClientKeyReturnsItsSequence) {
  Harness h;
  const OpenResult first = h.Open(Keyed("engine-0"));
  const OpenResult again = h.Open(Keyed("engine-0"));
  EXPECT_EQ(first.sequence, again.sequence);
  EXPECT_FALSE(first.existing);
  EXPECT_TRUE(again.existing);
  h.Release(first.sequence);
  EXPECT_FALSE(h.Open(Keyed("engine-0")).existing);
  EXPECT_EQ(ReasonOf(h.Open(Keyed(std::string(65, 'x'))).outcome), Reason::kInvalidField);
}

TEST(EngineSequence, ThePlaceOfASequenceIsKeptUntilItIsReleasedOrExpires) {
  Harness h;
  const auto open = [&h](const std::shared_ptr<int>& place, const std::string& key = "") {
    OpenRequest request = Keyed(key);
    request.place = place;
    return h.Open(std::move(request)).sequence;
  };
  const auto released = std::make_shared<int>(), expired = std::make_shared<int>(), unused = std::make_shared<int>();
  const SequenceId a = open(released);
  open(expired, "key");
  open(unused, "key");
  EXPECT_EQ(released.use_count(), 2);
  EXPECT_EQ(expired.use_count(), 2);
  EXPECT_EQ(unused.use_count(), 1) << "the sequence of that key has a place";
  h.Release(a);
  EXPECT_EQ(released.use_count(), 1);
  h.clock.AwaitWaiter();
  h.clock.Advance(absl::Minutes(11));
  h.clock.AwaitWaiterAnew();
  EXPECT_EQ(expired.use_count(), 1);
}

TEST(EngineSequence, AnOpeningThatTheCallerRefusesFindsALiveSequence) {
  Harness h;
  const SequenceId live = h.Open(Keyed("engine-0")).sequence;
  OpenRequest request = Keyed("engine-0");
  request.refused = Failed(absl::StatusCode::kResourceExhausted, "too many", MakeDetail(Reason::kCarriesFull));
  const OpenResult found = h.Open(request);
  EXPECT_TRUE(found.existing);
  EXPECT_EQ(found.sequence, live);
  request.client_key = "engine-1";
  EXPECT_EQ(h.Open(request).outcome.message, "too many");
  EXPECT_EQ(h.engine->stats().sequences_opened, 1u);
}

TEST(EngineSequence, AReleasedSequenceIsUnknownFromItsArrivalOn) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  Answer<ReleaseResult> released;
  h.engine->Release(a, 0, released.fn());
  EXPECT_EQ(h.Step(h.Request(a, {2})).outcome.code, absl::StatusCode::kNotFound);
  EXPECT_FALSE(released.ready());
  h.device->Open();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_TRUE(released.Get().released);
  EXPECT_FALSE(h.Release(a).released);
  EXPECT_TRUE(h.Release(a).outcome.ok());
  EXPECT_EQ(h.Get(a).outcome.code, absl::StatusCode::kNotFound);
}

TEST(EngineSequence, OtherCallsRefuseTheThrowAwayCarry) {
  Harness h;
  EXPECT_EQ(h.Get(SequenceId(0)).outcome.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(h.Snapshot(SequenceId(0)).outcome.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(h.Release(SequenceId(0)).outcome.code, absl::StatusCode::kInvalidArgument);
}

TEST(EngineSequence, ReleaseAfterActsOnlyWhenItsRequestSucceeds) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  StepRequest request = h.Request(a, {1}, 9);
  request.release_after = {a, b, SequenceId(77)};
  EXPECT_FALSE(h.Step(request).outcome.ok());
  EXPECT_TRUE(h.Get(b).outcome.ok());
  request.segments[0].position = Position(0);
  EXPECT_TRUE(h.Step(request).outcome.ok());
  EXPECT_EQ(h.Get(a).outcome.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(h.Get(b).outcome.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(h.engine->stats().closed_released, 2u);
}

TEST(EngineSequence, WhatStandsBehindAReleaseAfterIsNotFoundAndThePlaceIsUsedAgain) {
  Harness h({.max_sequences = 1});
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  StepRequest request = h.Request(a, {1});
  request.release_after = {a};
  Answer<StepResult> step = h.Submit(request);
  h.device->WaitForBatches(1);
  Answer<StepResult> behind = h.Submit(h.Request(a, {2}));
  h.device->Open();
  EXPECT_TRUE(step.Get().outcome.ok());
  EXPECT_EQ(behind.Get().outcome.code, absl::StatusCode::kNotFound);
  const SequenceId next = h.Open().sequence;
  EXPECT_NE(next, a);
  EXPECT_TRUE(h.Step(h.Request(next, {3})).outcome.ok());
}

TEST(EngineSequence, SnapshotOfARestoredSequenceIsTheBlob) {
  Harness h({.layers = 2});
  const SequenceId a = h.Open().sequence;
  std::vector<CarryBlob> blobs;
  for (uint32_t layer : {1u, 4u}) {
    CarryBlob blob;
    blob.layer = LayerIndex(layer);
    blob.position = Position(50);
    blob.aux = std::string("\x02\0\0\0\x0b\0\0\0\x16\0\0\0", 12);
    for (uint32_t i = 0; i < h.geometry.state_len() * h.geometry.channels() * 4; ++i) {
      blob.aux.push_back(static_cast<char>(i * layer));
    }
    blob.crc32 = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(blob.aux.data()), blob.aux.size()));
    blobs.push_back(blob);
  }
  EXPECT_TRUE(h.Restore(a, blobs, "model").ok());
  const SnapshotResult snapshot = h.Snapshot(a);
  ASSERT_EQ(snapshot.layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(snapshot.layers[i].aux, blobs[i].aux);
    EXPECT_EQ(snapshot.layers[i].position, Position(50));
  }
  OpenRequest fork;
  fork.layers = snapshot.layers;
  const SequenceId b = h.Open(fork).sequence;
  EXPECT_EQ(h.Snapshot(b, LayerIndex(4)).layers.at(0).aux, blobs[1].aux);
  EXPECT_THAT(h.Where(b), ElementsAre(50, 50, 50));
}

TEST(EngineSequence, RefusedRestoresLeaveTheSequenceAsItWas) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1, 2}));
  const SnapshotResult before = h.Snapshot(a);
  CarryBlob blob = before.layers[0];
  blob.position = Position((uint64_t{1} << 62) + 1);
  EXPECT_EQ(ReasonOf(h.Restore(a, {blob})), Reason::kAuxMalformed);
  blob = before.layers[0];
  blob.crc32 = 1;
  EXPECT_EQ(ReasonOf(h.Restore(a, {blob})), Reason::kAuxMalformed);
  blob = before.layers[0];
  blob.aux.resize(3);
  const Outcome malformed = h.Restore(a, {blob});
  EXPECT_EQ(ReasonOf(malformed), Reason::kAuxMalformed);
  EXPECT_EQ(malformed.message, "layers[0].aux 3 bytes: must be at least 4, for hist_len");
  blob = before.layers[0];
  EXPECT_EQ(ReasonOf(h.Restore(a, {blob}, "other")), Reason::kModelMismatch);
  EXPECT_EQ(ReasonOf(h.Restore(a, {blob, blob})), Reason::kInvalidField);
  blob.layer = LayerIndex(9);
  EXPECT_EQ(ReasonOf(h.Restore(a, {blob})), Reason::kLayerUnknown);
  EXPECT_THAT(h.Where(a), ElementsAre(2, 0, 0));
  EXPECT_EQ(h.Snapshot(a).layers.at(0).aux, before.layers[0].aux);
}

TEST(EngineSequence, LayersApartMustBeSnapshotByName) {
  Harness h({.layers = 2});
  const SequenceId a = h.Open().sequence;
  h.Step(h.Request(a, {1}));
  EXPECT_EQ(ReasonOf(h.Snapshot(a).outcome), Reason::kLayersApart);
  EXPECT_TRUE(h.Snapshot(a, LayerIndex(4)).outcome.ok());
  EXPECT_EQ(ReasonOf(h.Snapshot(a, LayerIndex(2)).outcome), Reason::kLayerUnknown);
}

TEST(EngineSequence, RestoreTakesAFailedStepAway) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  const SnapshotResult snapshot = h.Snapshot(a);
  h.Step(h.Request(a, {5000}));
  EXPECT_TRUE(h.Restore(a, snapshot.layers).ok());
  EXPECT_TRUE(h.Step(h.Request(a, {1})).outcome.ok());
}

TEST(EngineSequence, DrainingOpensNothingAndTellsWhenItIsIdle) {
  Harness h;
  const SequenceId a = h.Open(Keyed("k")).sequence;
  Answer<bool> idle;
  h.engine->StartDraining();
  h.engine->NotifyWhenIdle([fn = idle.fn()] { fn(true); });
  EXPECT_EQ(ReasonOf(h.Open().outcome), Reason::kDraining);
  EXPECT_TRUE(h.Open(Keyed("k")).existing);
  EXPECT_TRUE(h.Step(h.Request(a, {1})).outcome.ok());
  EXPECT_FALSE(idle.ready());
  h.Release(a);
  EXPECT_TRUE(idle.Get());
}

TEST(EngineSequence, StopAnswersEverythingAndCountsWhatDidNotRun) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.device->Hold();
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  Answer<StepResult> queued = h.Submit(h.Request(a, {2}));
  Answer<StepResult> ready = h.Submit(h.Request(b, {3}));
  std::thread stop([&] { EXPECT_EQ(h.engine->Stop(), 2u); });
  EXPECT_EQ(ready.Get().outcome.code, absl::StatusCode::kUnavailable);
  h.device->Open();
  stop.join();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_EQ(queued.Get().outcome.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.Step(h.Request(a, {4})).outcome.code, absl::StatusCode::kUnavailable);
}

TEST(EngineSequence, ALostDeviceFailsEverythingAndTells) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  Answer<absl::Status> lost;
  h.engine->NotifyDeviceLost(lost.fn());
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  Answer<StepResult> queued = h.Submit(h.Request(a, {2}));
  h.device->Fail(absl::InternalError("planted"));
  EXPECT_EQ(running.Get().outcome.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(queued.Get().outcome.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(lost.Get().message(), "planted");
}

}  // namespace
}  // namespace pleiad
