// What a sequence carries from step to step: B13, B15, B17, B18.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "tests/cases/stack.h"

namespace pleiad::testing {
namespace {

Stack LargeVocabulary() {
  CheckpointSpec spec;
  spec.vocab_size = 20000;
  return Stack({.spec = spec});
}

v1::OpenSequenceRequest From(const v1::SnapshotResponse& snapshot) {
  v1::OpenSequenceRequest request;
  request.set_model_id(snapshot.model_id());
  *request.mutable_layers() = snapshot.layers();
  return request;
}

// A new sequence that starts from `snapshot`.
uint64_t OpenFrom(Stack& stack, const v1::SnapshotResponse& snapshot) {
  uint64_t sequence = 0;
  const grpc::Status status = stack.Open(From(snapshot), &sequence);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return sequence;
}

enum class Commit { kByRestore, kByPosition };

TEST(B13, TheRejectedTokenOfTheExampleLeavesNoTrace) {
  Stack stack = LargeVocabulary();
  const Story accepted = stack.MakeStory({14542, 11, 321, 77, 900}, 1);
  const Stack::Whole plain = stack.FreshRun(accepted);
  Story draft = accepted.Part(2, 1);  // 321, then the rejected 16908
  draft.tokens.push_back(16908);
  draft.highway.insert(draft.highway.end(), accepted.highway.begin(),
                       accepted.highway.begin() + static_cast<ptrdiff_t>(stack.channels()));
  for (const Commit commit : {Commit::kByRestore, Commit::kByPosition}) {
    const uint64_t sequence = stack.Open();
    stack.Step(sequence, accepted.Part(0, 2));
    const v1::SnapshotResponse before = stack.Snapshot(sequence);
    stack.Step(sequence, draft);
    EXPECT_EQ(stack.Parse(stack.At(sequence).aux).history, (std::vector<uint32_t>{321, 16908}));
    if (commit == Commit::kByRestore) {
      ASSERT_TRUE(stack.Restore(sequence, before).ok());
      stack.Step(sequence, accepted.Part(2, 1));
    } else {
      v1::ForwardRequest move = stack.Request(sequence, accepted.Part(0, 0), 3);
      ASSERT_TRUE(stack.Forward(move).ok());
    }
    EXPECT_EQ(stack.Parse(stack.At(sequence).aux).history, (std::vector<uint32_t>{11, 321}));
    const std::vector<float> rest = stack.Step(sequence, accepted.Part(3, 2));
    EXPECT_TRUE(SameBits(rest, {plain.output.end() - static_cast<ptrdiff_t>(rest.size()), plain.output.end()}));
    EXPECT_EQ(stack.At(sequence), plain.end);
  }
}

TEST(B13, AThousandCyclesEqualOneTokenStepping) {
  Stack stack;
  std::mt19937 random(17);
  const uint64_t speculating = stack.Open(), plain = stack.Open();
  uint64_t at = 0;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    const size_t window = 1 + random() % 8, accepted = random() % (window + 1);
    const Story draft = stack.RandomStory(window, 1000 + static_cast<uint64_t>(cycle));
    const std::vector<float> verified = stack.Step(speculating, draft, at);
    std::vector<float> stepped;
    for (size_t i = 0; i < accepted; ++i) stepped = Join(stepped, stack.Step(plain, draft.Part(i, 1)));
    ASSERT_TRUE(SameBits({verified.begin(), verified.begin() + static_cast<ptrdiff_t>(stepped.size())}, stepped));
    at += accepted;
    ASSERT_TRUE(stack.Forward(stack.Request(speculating, draft.Part(0, 0), at)).ok());
    const Where got = stack.At(speculating), want = stack.At(plain);
    ASSERT_EQ(got.position, want.position);
    const AuxBlob got_blob = stack.Parse(got.aux), want_blob = stack.Parse(want.aux);
    ASSERT_EQ(got_blob.history, want_blob.history) << "cycle " << cycle;
    ASSERT_TRUE(SameBits(got_blob.conv_rows, want_blob.conv_rows)) << "cycle " << cycle;
    ASSERT_EQ(got, want);
  }
}

TEST(B15, RestoredAndContinuedEqualsNeverStopped) {
  Stack stack;
  const Story story = stack.MakeStory(kToyTokens, 5);
  const Stack::Whole whole = stack.FreshRun(story);
  std::vector<v1::SnapshotResponse> blobs;
  for (size_t cut = 0; cut <= story.tokens.size(); ++cut) {
    const uint64_t original = stack.Open();
    std::vector<float> head;
    if (cut > 0) head = stack.Step(original, story.Part(0, cut));
    blobs.push_back(stack.Snapshot(original));
    EXPECT_EQ(blobs[cut].layers(0).position(), cut);
    const uint64_t twin = OpenFrom(stack, blobs[cut]);
    EXPECT_EQ(stack.At(twin), stack.At(original)) << "cut " << cut;
    const Story tail = story.Part(cut, story.tokens.size() - cut);
    for (const uint64_t sequence : {twin, original}) {
      std::vector<float> all = head;
      if (!tail.tokens.empty()) all = Join(all, stack.Step(sequence, tail));
      EXPECT_TRUE(SameBits(all, whole.output)) << "cut " << cut;
      EXPECT_EQ(stack.At(sequence), whole.end) << "cut " << cut;
    }
  }
  // A server started again.
  Stack again;
  for (size_t cut = 0; cut < story.tokens.size(); ++cut) {
    const uint64_t sequence = OpenFrom(again, blobs[cut]);
    const std::vector<float> tail = again.Step(sequence, story.Part(cut, story.tokens.size() - cut));
    EXPECT_TRUE(SameBits(tail, {whole.output.end() - static_cast<ptrdiff_t>(tail.size()), whole.output.end()}));
    EXPECT_EQ(again.At(sequence), whole.end) << "cut " << cut;
  }
}

// A restore that lost the ids would not pass unseen.
TEST(B15, ABlobWithoutItsIdsContinuesDifferently) {
  Stack stack;
  const Story story = stack.MakeStory(kToyTokens, 5);
  const uint64_t sequence = stack.Open();
  stack.Step(sequence, story.Part(0, 2));
  v1::SnapshotResponse forgetful = stack.Snapshot(sequence);
  forgetful.mutable_layers(0)->clear_crc32();
  for (size_t i = 0; i < 2; ++i) {
    const uint32_t eos = 7;
    forgetful.mutable_layers(0)->mutable_aux()->replace(4 + 4 * i, 4, reinterpret_cast<const char*>(&eos), 4);
  }
  EXPECT_FALSE(
      SameBits(stack.Step(OpenFrom(stack, forgetful), story.Part(2, 1)), stack.Step(sequence, story.Part(2, 1))));
}

// Every carry of the pool has held NaN.
void PoisonThePool(Stack& stack) {
  Story poison = stack.RandomStory(20, 1);
  for (float& value : poison.highway) value = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint64_t> sequences;
  for (uint32_t i = 0; i < CaseFlags().max_sequences; ++i) sequences.push_back(stack.Open());
  for (const uint64_t sequence : sequences) stack.Step(sequence, poison);
  // Rows of x are normed u: NaN where the gate is.
  EXPECT_NE(stack.Parse(stack.At(sequences[0]).aux).conv_rows[0], stack.Parse(stack.At(sequences[0]).aux).conv_rows[0]);
  for (const uint64_t sequence : sequences) stack.Release(sequence);
}

TEST(B17, ResultsDoNotDependOnHowTokensAreCut) {
  Stack stack;
  PoisonThePool(stack);
  std::mt19937 random(3);
  Story story = stack.RandomStory(40, 8);
  const auto expect_cut = [&](const Stack::Whole& whole, const std::function<size_t()>& next) {
    const uint64_t sequence = stack.Open();
    std::vector<float> output;
    for (size_t at = 0; at < 40;) {
      const size_t count = std::min(next(), 40 - at);
      output = Join(output, stack.Step(sequence, story.Part(at, count)));
      at += count;
    }
    ASSERT_TRUE(SameBits(output, whole.output));
    ASSERT_EQ(stack.At(sequence), whole.end);
    stack.Release(sequence);
  };
  const Stack::Whole whole = stack.FreshRun(story);
  for (const float value : whole.output) ASSERT_EQ(value, value) << "NaN of an earlier owner";
  for (size_t chunk = 1; chunk <= 12; ++chunk) expect_cut(whole, [chunk] { return chunk; });
  for (int i = 0; i < 200; ++i) expect_cut(whole, [&random] { return 1 + random() % 12; });
  // An EOS just before, on and just after each cut.
  for (size_t chunk = 1; chunk <= 12; ++chunk) {
    for (const size_t shift : {size_t{0}, size_t{1}, chunk - 1}) {
      story = stack.RandomStory(40, 8);
      for (size_t i = shift; i < 40; i += chunk) story.tokens[i] = 7;
      expect_cut(stack.FreshRun(story), [chunk] { return chunk; });
    }
  }
}

TEST(B17, ContinuationsDoNotTouchTheirSnapshot) {
  Stack stack;
  const Story story = stack.RandomStory(40, 4);
  const uint64_t prefix = stack.Open();
  stack.Step(prefix, story.Part(0, 20));
  const v1::SnapshotResponse snapshot = stack.Snapshot(prefix);
  for (size_t count = 1; count <= 8; ++count) {
    const uint64_t a = OpenFrom(stack, snapshot), b = OpenFrom(stack, snapshot);
    stack.Step(a, story.Part(20, count));
    stack.Step(b, story.Part(30, count));
    EXPECT_EQ(stack.At(prefix).aux, snapshot.layers(0).aux());
    const uint64_t c = OpenFrom(stack, snapshot);
    EXPECT_EQ(stack.At(c).aux, snapshot.layers(0).aux());
    for (const uint64_t sequence : {a, b, c}) stack.Release(sequence);
  }
}

TEST(B18, APrefixRestoredInMidGenerationEqualsTheColdRun) {
  Stack stack;
  const Story story = stack.RandomStory(20, 6);
  const Stack::Whole cold = stack.FreshRun(story);
  const uint64_t sequence = stack.Open();
  stack.Step(sequence, story.Part(0, 10));
  v1::SnapshotResponse at16;
  for (size_t i = 10; i < 20; ++i) {
    if (i == 16) at16 = stack.Snapshot(sequence);
    stack.Step(sequence, story.Part(i, 1));
  }
  EXPECT_EQ(stack.At(sequence), cold.end);
  const uint64_t warm = OpenFrom(stack, at16);
  const std::vector<float> tail = stack.Step(warm, story.Part(16, 4));
  EXPECT_TRUE(SameBits(tail, {cold.output.end() - static_cast<ptrdiff_t>(tail.size()), cold.output.end()}));
  EXPECT_EQ(stack.At(warm), cold.end);
}

TEST(B18, AHandCutBlobIsRefusedWholly) {
  Stack stack;
  const Story story = stack.RandomStory(20, 6);
  const uint64_t sequence = stack.Open();
  stack.Step(sequence, story.Part(0, 12));
  const v1::SnapshotResponse good = stack.Snapshot(sequence);
  stack.Step(sequence, story.Part(12, 8));
  const Where before = stack.At(sequence);
  const std::string aux = good.layers(0).aux();
  const auto with = [&](const std::string& bytes) {
    v1::SnapshotResponse changed = good;
    changed.mutable_layers(0)->set_aux(bytes);
    changed.mutable_layers(0)->clear_crc32();
    return changed;
  };
  std::vector<v1::SnapshotResponse> cut = {with(""), with(aux.substr(0, 12)), with(aux.substr(0, aux.size() - 4)),
                                           with(aux.substr(0, 4) + aux.substr(12)), with(aux + aux.substr(12))};
  cut.push_back(good);
  cut.back().set_model_id("another");
  cut.push_back(good);
  cut.back().mutable_layers(0)->set_crc32(~good.layers(0).crc32());
  cut.push_back(good);
  cut.back().mutable_layers(0)->set_layer_index(3);
  for (size_t i = 0; i < cut.size(); ++i) {
    v1::Status detail;
    EXPECT_EQ(stack.Restore(sequence, cut[i], &detail).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << i;
    EXPECT_GT(detail.details_size(), 0) << i;
    EXPECT_EQ(stack.At(sequence), before) << i;
  }
  EXPECT_TRUE(stack.Restore(sequence, good).ok());
  EXPECT_EQ(stack.At(sequence).aux, aux);
}

TEST(B18, APreemptedSequenceResumesAsIfNothingHappened) {
  StackOptions options;
  options.flags.max_sequences = 4;
  Stack stack(options);
  const Story story = stack.RandomStory(30, 2);
  const Stack::Whole cold = stack.FreshRun(story);
  uint64_t sequence = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 17));
  const v1::SnapshotResponse saved = stack.Snapshot(sequence);
  stack.Release(sequence);
  std::vector<uint64_t> others;
  for (uint64_t i = 0; i < 4; ++i) {
    others.push_back(stack.Open());
    stack.Step(others.back(), stack.RandomStory(25, 70 + i));
  }
  EXPECT_EQ(stack.Open(From(saved), &sequence).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  stack.Release(others.back());
  sequence = OpenFrom(stack, saved);
  output = Join(output, stack.Step(sequence, story.Part(17, 13)));
  EXPECT_TRUE(SameBits(output, cold.output));
  EXPECT_EQ(stack.At(sequence), cold.end);
}

}  // namespace
}  // namespace pleiad::testing
