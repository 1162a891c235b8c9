// Rules of requests: epochs, sizes, layers, reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/engine/harness.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

Reason ReasonOf(const Outcome& outcome) {
  return outcome.details.empty() ? Reason::kUnspecified : outcome.details[0].reason;
}

TEST(EngineRules, AnUnknownLayerIsNamedWithTheKnownOnes) {
  Harness h;
  StepRequest request = h.Request(h.Open().sequence, {1});
  request.layer = LayerIndex(2);
  const StepResult result = h.Step(request);
  EXPECT_EQ(ReasonOf(result.outcome), Reason::kLayerUnknown);
  EXPECT_EQ(result.outcome.message, "layer_index 2 has no PLE: zero-based PLE layers: [1] (the config lists [2])");
  request.layer.reset();
  EXPECT_TRUE(h.Step(request).outcome.ok());
}

TEST(EngineRules, WithSeveralLayersOneMustBeNamed) {
  Harness h({.layers = 2});
  StepRequest request = h.Request(h.Open().sequence, {1});
  request.layer.reset();
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kLayerUnknown);
}

TEST(EngineRules, SizesAreChecked) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  StepRequest request = h.Request(a, {1, 2});
  request.segments[0].num_tokens = 3;
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kSizeMismatch);
  request = h.Request(a, std::vector<uint32_t>(65, 1), 0);
  const StepResult many = h.Step(request);
  EXPECT_EQ(ReasonOf(many.outcome), Reason::kTooManyTokens);
  EXPECT_THAT(many.outcome.message, HasSubstr("--max-tokens"));
  std::vector<std::byte> bytes(2 * 8 * 4);
  request = h.Request(a, {1, 2}, 0);
  request.input = {StepInput::Source::kData, DType::kF32, bytes.data(), {}, bytes.size()};
  for (size_t size = 0; size <= bytes.size(); ++size) {
    request.input.bytes = size;
    const StepResult result = h.Step(request);
    if (size == bytes.size()) {
      EXPECT_TRUE(result.outcome.ok());
    } else {
      EXPECT_EQ(ReasonOf(result.outcome), Reason::kSizeMismatch) << size;
    }
  }
  request.input.dtype.reset();
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kInvalidField);
  request.input = {};
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kInvalidField);
}

TEST(EngineRules, TokensOutsideTheVocabularyAreNamed) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  for (uint32_t bad : {1000u, 0xFFFFFFFFu, 0x80000000u}) {
    const StepResult result = h.Step(h.Request(a, {11, bad, 22}, 0));
    EXPECT_EQ(ReasonOf(result.outcome), Reason::kTokenOutOfVocabulary);
    EXPECT_EQ(result.outcome.details[0].field, "token_ids[1]");
    EXPECT_EQ(result.outcome.details[0].value, std::to_string(bad));
    EXPECT_THAT(result.outcome.message, HasSubstr("map multimodal pad values back to image_token_id"));
  }
  EXPECT_EQ(h.Where(a)[0], 0u);
}

TEST(EngineRules, ASequenceAppearsOnce) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  StepRequest request = h.Request(a, {1});
  request.segments.push_back(request.segments[0]);
  request.token_ids = {1, 2};
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kDuplicateSequence);
}

TEST(EngineRules, FreshTakesNoPosition) {
  Harness h;
  StepRequest request = h.Request(h.Open().sequence, {1}, 3);
  request.segments[0].fresh = true;
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kInvalidField);
  request.segments[0].position = Position(0);
  EXPECT_TRUE(h.Step(request).outcome.ok());
}

TEST(EngineRules, AnOldEpochIsRefusedArrivingAndQueued) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  h.device->Hold();
  StepRequest request = h.Request(a, {1}, 0);
  request.epoch = 1;
  Answer<StepResult> running = h.Submit(request);
  h.device->WaitForBatches(1);
  request.segments[0].position = Position(1);
  Answer<StepResult> queued = h.Submit(request);
  Answer<GetSequenceResult> get = h.SubmitGet(a, 2);
  Answer<StepResult> late = h.Submit(request);
  h.device->Open();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_EQ(queued.Get().outcome.code, absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(late.Get().outcome), Reason::kEpochOld);
  EXPECT_EQ(get.Get().epoch, 2u);
  EXPECT_EQ(get.Get().layers.at(0).position, Position(1));
  EXPECT_EQ(h.Release(a, 1).outcome.code, absl::StatusCode::kAborted);
  EXPECT_TRUE(h.Release(a, 2).released);
}

TEST(EngineRules, RequestsOfTheSameEpochAreServedOneAfterTheOther) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  StepRequest request = h.Request(a, {1});
  request.epoch = 3;
  EXPECT_TRUE(h.Step(request).outcome.ok());
  EXPECT_TRUE(h.Step(request).outcome.ok());
  EXPECT_TRUE(h.Snapshot(a, std::nullopt, 3).outcome.ok());
  EXPECT_EQ(h.Get(a, 3).layers.at(0).position, Position(2));
}

TEST(EngineRules, QueuedCallsOfAnOldEpochAreRefusedAndChangeNothing) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  const std::vector<CarryBlob> start = h.Snapshot(a).layers;
  h.device->Hold();
  Answer<StepResult> running = h.Submit(h.Request(a, {1}));
  h.device->WaitForBatches(1);
  Answer<GetSequenceResult> get = h.SubmitGet(a, 1);
  Answer<SnapshotResult> snapshot;
  h.engine->Snapshot(a, 1, std::nullopt, snapshot.fn());
  Answer<Outcome> restore;
  h.engine->Restore(a, 1, "", start, restore.fn());
  Answer<GetSequenceResult> newer = h.SubmitGet(a, 2);
  h.device->Open();
  EXPECT_TRUE(running.Get().outcome.ok());
  EXPECT_EQ(ReasonOf(get.Get().outcome), Reason::kEpochOld);
  EXPECT_EQ(ReasonOf(snapshot.Get().outcome), Reason::kEpochOld);
  EXPECT_EQ(ReasonOf(restore.Get()), Reason::kEpochOld);
  EXPECT_EQ(newer.Get().layers.at(0).position, Position(1));
}

TEST(EngineRules, ARefusedButWellFormedRequestRaisesTheEpochAMalformedOneDoesNot) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  StepRequest request = h.Request(a, {1}, 99);
  request.epoch = 5;
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kPositionUnreachable);
  EXPECT_EQ(h.Get(a).epoch, 5u);
  request = h.Request(a, {5000}, 0);
  request.epoch = 9;
  h.Step(request);
  EXPECT_EQ(h.Get(a).epoch, 5u);
}

TEST(EngineRules, AStepPastTheLargestPositionIsRefused) {
  Harness h;
  const SequenceId a = h.Open().sequence;
  std::vector<CarryBlob> blobs = h.Snapshot(a).layers;
  blobs[0].position = Position(kMaxPosition.value() - 1);
  ASSERT_TRUE(h.Restore(a, blobs).ok());
  const StepResult past = h.Step(h.Request(a, {1, 2}));
  EXPECT_EQ(ReasonOf(past.outcome), Reason::kPositionUnreachable);
  EXPECT_EQ(h.Where(a)[0], kMaxPosition.value() - 1);
  EXPECT_TRUE(h.Step(h.Request(a, {1}, kMaxPosition.value() - 1)).outcome.ok());
  EXPECT_EQ(h.Where(a)[0], kMaxPosition.value());
  blobs[0].position = Position(kMaxPosition.value() + 1);
  EXPECT_EQ(ReasonOf(h.Restore(a, blobs)), Reason::kAuxMalformed);
}

TEST(EngineRules, PrestagesCarryNoTensorAndReleaseNothing) {
  Harness h;
  StepRequest request = h.Request(h.Open().sequence, {1});
  request.mode = StepMode::kPrestage;
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kInvalidField);
  request.input = {};
  request.release_after = {SequenceId(1)};
  EXPECT_EQ(ReasonOf(h.Step(request).outcome), Reason::kInvalidField);
}

TEST(EngineRules, UnreadableRowsNameSegmentFileAndOffsetAndMoveNothing) {
  Harness h;
  const SequenceId a = h.Open().sequence, b = h.Open().sequence;
  h.rows->Hold();
  StepRequest request = h.Request(a, {1, 2});
  request.segments.push_back({b, 2, false, std::nullopt});
  request.token_ids = {1, 2, 3, 4};
  Answer<StepResult> step = h.Submit(std::move(request));
  h.rows->WaitForWaiters(1);
  h.rows->Answer(absl::DataLossError("row unreadable"), {{13, "model-3.safetensors", 4096}});
  const Outcome outcome = step.Get().outcome;
  EXPECT_EQ(outcome.code, absl::StatusCode::kDataLoss);
  ASSERT_EQ(outcome.details.size(), 1u);
  EXPECT_EQ(outcome.details[0].segment, 1u);
  EXPECT_EQ(outcome.details[0].value, "model-3.safetensors at byte 4096");
  EXPECT_EQ(h.Where(a)[0], 0u);
  EXPECT_EQ(h.rows->held_plans(), 0u);
}

TEST(EngineRules, LookupFillsShortContextsWithEosAndTakesTheLastIdsOfLongOnes) {
  Harness h;
  const auto ids = [&](std::vector<uint32_t> context) {
    LookupRequest request;
    request.segments.push_back({1, std::move(context)});
    request.token_ids = {33};
    request.want_row_ids = true;
    return h.Lookup(request).row_ids;
  };
  EXPECT_EQ(ids({11, 22}), (std::vector<uint64_t>{21, 42, 99, 122}));
  EXPECT_EQ(ids({7, 500, 11, 22}), ids({11, 22}));
  EXPECT_EQ(ids({22}), ids({7, 22}));
  EXPECT_NE(ids({22}), ids({11, 22}));
  LookupRequest bad;
  bad.segments.push_back({1, {1000}});
  bad.token_ids = {1};
  EXPECT_EQ(ReasonOf(h.Lookup(bad).outcome), Reason::kTokenOutOfVocabulary);
}

}  // namespace
}  // namespace pleiad
