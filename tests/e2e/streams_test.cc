// Many streams at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/sessions.h"
#include "tests/oracle/oracle.h"

namespace pleiad::testing {
namespace {

constexpr size_t kStreams = 64;

enum class Sums : uint8_t { kFastest, kBatchInvariant };

class ManyStreamsTest : public ::testing::TestWithParam<Sums> {};

TEST_P(ManyStreamsTest, SixtyFourStreamsOfDifferentLengthsEqualSoloRuns) {
  TempDir dir;
  WriteCheckpoint({}, dir.path());
  const bool exact = GetParam() == Sums::kBatchInvariant;
  InProcessServer server(dir.path(), [exact](ServerFlags& flags) { flags.batch_invariant = exact; });
  client::Client client = server.Connect();
  std::mt19937 random(50);
  std::vector<Passage> passages;
  std::vector<std::vector<uint32_t>> lengths(kStreams);
  std::vector<std::string> solo;
  std::vector<client::Sequence> solo_sequences, sequences;
  {
    const auto stream = *client.OpenStream();
    for (size_t i = 0; i < kStreams; ++i) {
      passages.push_back(RandomPassage(random, 20 + static_cast<uint32_t>(i), client.model()));
      for (int k = 0; k < 60; ++k) lengths[i].push_back(1 + static_cast<uint32_t>(random() % (1 + i % 12)));
      solo_sequences.push_back(*client.OpenSequence());
      sequences.push_back(*client.OpenSequence());
      solo.push_back(RunPassage(*stream, solo_sequences[i], passages[i]));
    }
  }
  std::vector<std::unique_ptr<client::StepStream>> streams;
  for (size_t i = 0; i < kStreams; ++i) streams.push_back(*client.OpenStream());
  std::vector<std::string> together(kStreams);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] { together[i] = RunPassage(*streams[i], sequences[i], passages[i], lengths[i]); });
  }
  for (std::thread& thread : threads) thread.join();

  for (size_t i = 0; i < kStreams; ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(together[i].size(), passages[i].highway.size() * sizeof(float));
    const client::LayerAux got = sequences[i].Snapshot()->layers[0], want = solo_sequences[i].Snapshot()->layers[0];
    EXPECT_EQ(got.position, want.position);
    const size_t history = 4 + 4 * (client.model().ngram_size - 1);
    EXPECT_EQ(got.aux.substr(0, history), want.aux.substr(0, history));
    if (exact) {
      EXPECT_EQ(together[i], solo[i]);
      EXPECT_EQ(got.aux, want.aux);
    }
  }
  // One flipped rounding of k or v is in a small trace more than it may be over all of them together.
  std::vector<float> all;
  std::vector<double> all_solo;
  for (size_t i = 0; i < kStreams; ++i) {
    for (float value : ToFloats(together[i])) all.push_back(value);
    for (float value : ToFloats(solo[i])) all_solo.push_back(value);
  }
  EXPECT_LE(oracle::RelativeL2(all, all_solo), 3e-4);
  // The answers of two streams mixed up would be noticed.
  EXPECT_NE(together[0], solo[1].substr(0, together[0].size()));
}

INSTANTIATE_TEST_SUITE_P(Sums, ManyStreamsTest, ::testing::Values(Sums::kFastest, Sums::kBatchInvariant),
                         [](const auto& chosen) {
                           return chosen.param == Sums::kFastest ? "Fastest" : "BatchInvariant";
                         });

}  // namespace
}  // namespace pleiad::testing
