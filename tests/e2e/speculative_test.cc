// Draft, verify, accept a prefix, go on by position: equal to plain decoding, whatever was rejected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/sessions.h"

namespace pleiad::testing {
namespace {

constexpr uint32_t kProposed = 5;

class SpeculativeTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  SpeculativeTest()
      : server_(Write(),
                [](ServerFlags& flags) {
                  flags.batch_invariant = true;
                  flags.rollback_tokens = GetParam();
                }),
        client_(server_.Connect()) {}

  std::string Write() {
    WriteCheckpoint({}, model_.path());
    return model_.path();
  }
  // Blob and position.
  std::string Snapshot(client::Sequence& sequence) {
    const absl::StatusOr<client::SequenceSnapshot> snapshot = sequence.Snapshot();
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return absl::StrCat(snapshot->layers[0].position.value_or(0), " ", snapshot->layers[0].aux);
  }

  TempDir model_;
  InProcessServer server_;
  client::Client client_;
};

TEST_P(SpeculativeTest, AcceptingAnyPrefixEqualsPlainDecoding) {
  std::mt19937 random(30 + GetParam());
  client::Sequence speculative = *client_.OpenSequence(), plain = *client_.OpenSequence();
  const auto stream = *client_.OpenStream(), plain_stream = *client_.OpenStream();
  uint64_t position = 0;
  int accepted_counts[kProposed + 1] = {};
  int chunk_edges = 0, rejected_eos = 0;
  bool after_chunk = false;
  for (int cycle = 0; cycle < 400; ++cycle) {
    SCOPED_TRACE(absl::StrCat("cycle ", cycle, " at position ", position));
    if (cycle == 0 || random() % 6 == 0) {
      // A chunk of prompt; the plain sequence takes it token by token.
      const Passage chunk = RandomPassage(random, 1 + static_cast<uint32_t>(random() % 20), client_.model());
      const auto result = stream->Run(StepOf(speculative, chunk, 0, chunk.size(), position));
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->output, RunPassage(*plain_stream, plain, chunk, {1}));
      position += chunk.size();
      after_chunk = true;
      continue;
    }
    // The token decoded last and the proposals.
    const Passage window = RandomPassage(random, 1 + kProposed, client_.model());
    const auto result = stream->Run(StepOf(speculative, window, 0, window.size(), position));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->segments[0].position, position + window.size());
    const auto accepted = static_cast<uint32_t>(random() % (kProposed + 1));
    ++accepted_counts[accepted];
    chunk_edges += after_chunk ? 1 : 0;
    after_chunk = false;
    for (uint32_t i = 1 + accepted; i < window.size(); ++i) {
      rejected_eos += window.tokens[i] == client_.model().eos_token_id ? 1 : 0;
    }
    const Passage kept = window.Slice(0, 1 + accepted);
    ASSERT_EQ(result->output.substr(0, kept.highway.size() * sizeof(float)),
              RunPassage(*plain_stream, plain, kept, {1}));
    position += kept.size();
    // Go on by position alone, or commit the prefix by a pure move and look.
    if (random() % 2 == 0) {
      const auto moved = stream->Run(MoveOf(speculative, position));
      ASSERT_TRUE(moved.ok()) << moved.status();
      ASSERT_EQ(Snapshot(speculative), Snapshot(plain));
    }
  }
  const Passage end = RandomPassage(random, 12, client_.model());
  const auto result = stream->Run(StepOf(speculative, end, 0, end.size(), position));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, RunPassage(*plain_stream, plain, end, {1}));
  EXPECT_EQ(Snapshot(speculative), Snapshot(plain));
  EXPECT_GT(*std::min_element(std::begin(accepted_counts), std::end(accepted_counts)), 20);
  EXPECT_GT(chunk_edges, 20);
  EXPECT_GT(rejected_eos, 20);
}

TEST_P(SpeculativeTest, GoingOnFromAWrongPositionIsNoticed) {
  std::mt19937 random(31);
  client::Sequence speculative = *client_.OpenSequence(), plain = *client_.OpenSequence();
  const auto stream = *client_.OpenStream();
  const Passage prompt = RandomPassage(random, 20, client_.model());
  ASSERT_EQ(RunPassage(*stream, speculative, prompt), RunPassage(*stream, plain, prompt, {1}));
  const Passage window = RandomPassage(random, 1 + kProposed, client_.model());
  ASSERT_TRUE(stream->Run(StepOf(speculative, window, 0, window.size())).ok());
  RunPassage(*stream, plain, window.Slice(0, 3), {1});
  const Passage next = RandomPassage(random, 9, client_.model());
  // One rejected token too many stays.
  const auto wrong = stream->Run(StepOf(speculative, next, 0, next.size(), 24));
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_NE(wrong->output, RunPassage(*stream, plain, next));
  EXPECT_NE(Snapshot(speculative), Snapshot(plain));
}

// 6 tokens, of which 5 may be taken back: the smallest rollback that serves; then the default.
INSTANTIATE_TEST_SUITE_P(Rollback, SpeculativeTest, ::testing::Values(5u, 8u));

}  // namespace
}  // namespace pleiad::testing
