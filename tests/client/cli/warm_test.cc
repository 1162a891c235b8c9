// `pleiad warm` against a server that caches rows.
#include "client/cli/warm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "client/cli/commands.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_dir.h"

namespace pleiad::cli {
namespace {

using pleiad::testing::CheckpointSpec;
using pleiad::testing::InProcessServer;
using pleiad::testing::MetricValue;
using pleiad::testing::ScrapeMetrics;
using pleiad::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr uint32_t kMaxTokens = 16;

// Tables so large that two tokens seldom share a row.
CheckpointSpec Spec() {
  CheckpointSpec spec;
  spec.ngram_vocab_size_base = 4000;
  spec.ple_layer_ids = {2, 4};
  return spec;
}

class WarmTest : public ::testing::Test {
 protected:
  WarmTest() {
    WriteCheckpoint(Spec(), dir_.path());
    server_ = std::make_unique<InProcessServer>(dir_.path(), [](pleiad::ServerFlags& flags) {
      flags.table = TableFlag::kCached;
      flags.max_tokens = kMaxTokens;
    });
  }

  std::string WriteTokens(const std::string& name, const std::vector<uint32_t>& ids, size_t cut = 0) const {
    std::ofstream(dir_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 4 - cut));
    return dir_ / name;
  }

  static std::vector<uint32_t> RandomTokens(size_t count, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<uint32_t> ids(count);
    for (uint32_t& id : ids) id = rng() % Spec().vocab_size;
    return ids;
  }

  // `pleiad warm`; the texts it wrote are left in out_ and err_.
  int Run(std::vector<std::string> args) {
    args.insert(args.begin(), {"pleiad", "warm", "--server", server_->address()});
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit = Main(static_cast<int>(argv.size()), argv.data());
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return exit;
  }

  double Metric(const std::string& name) const { return MetricValue(ScrapeMetrics(server_->metrics_port()), name); }

  // What a new sequence that steps through the tokens finds.
  client::StepStats Serve(const std::vector<uint32_t>& tokens, uint32_t layer_index) const {
    client::Client client = server_->Connect();
    const client::Sequence sequence = *client.OpenSequence();
    const std::unique_ptr<client::StepStream> stream = *client.OpenStream();
    client::StepStats sum;
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t end = std::min<size_t>(begin + 7, tokens.size());
      client::Step step;
      step.layer_index = layer_index;
      step.segments = {{.sequence = &sequence, .num_tokens = static_cast<uint32_t>(end - begin)}};
      step.token_ids.assign(tokens.begin() + static_cast<ptrdiff_t>(begin),
                            tokens.begin() + static_cast<ptrdiff_t>(end));
      step.highway.zeros = true;
      const absl::StatusOr<client::StepResult> result = stream->Run(std::move(step));
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      sum.hits += result->stats.hits;
      sum.misses += result->stats.misses;
      sum.joins += result->stats.joins;
      begin = end;
    }
    return sum;
  }

  TempDir dir_;
  std::unique_ptr<InProcessServer> server_;
  std::string out_, err_;
};

TEST_F(WarmTest, EveryRowOfTheTraceIsInTheCacheAfterwards) {
  const std::vector<uint32_t> tokens = RandomTokens(101, 1);
  ASSERT_EQ(Run({"--trace", WriteTokens("ids", tokens)}), kExitOk) << err_;
  // 8 requests, 7 of which repeat two tokens, of 4 heads at 2 layers.
  EXPECT_THAT(out_, HasSubstr("101 tokens at 2 layers: rows 920, hits ")) << out_;
  EXPECT_THAT(out_, MatchesRegex(".*joins [0-9]+, misses [0-9]+, seconds [0-9.]+\n"));
  EXPECT_THAT(err_, AllOf(HasSubstr("\r15 % of 202 tokens\r"), HasSubstr("\r100 % of 202 tokens\n")));

  EXPECT_EQ(Metric("pleiad_sequences"), 0);
  EXPECT_EQ(Metric("pleiad_arena_slots{state=\"held\"}"), 0);
  EXPECT_GT(Metric("pleiad_arena_slots{state=\"idle\"}"), 500);
  for (const uint32_t layer : {1u, 3u}) {
    const client::StepStats stats = Serve(tokens, layer);
    EXPECT_EQ(stats.hits, 101u * 4) << layer;
    EXPECT_EQ(stats.misses + stats.joins, 0u) << layer;
  }
  EXPECT_GT(Serve(RandomTokens(101, 2), 1).misses, 100u);  // other tokens are cold
}

TEST_F(WarmTest, ASecondTimeFindsAllOfIt) {
  const std::string trace = WriteTokens("ids", RandomTokens(kMaxTokens, 3));
  ASSERT_EQ(Run({"--trace", trace}), kExitOk) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("misses 0,")));
  ASSERT_EQ(Run({"--trace", trace}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("rows 128, hits 128, joins 0, misses 0,"));
}

TEST_F(WarmTest, OneLayerCanBeNamed) {
  const std::vector<uint32_t> tokens = RandomTokens(20, 4);
  ASSERT_EQ(Run({"--trace", WriteTokens("ids", tokens), "--layer-index", "3"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("20 tokens at 1 layer: rows 88, "));
  EXPECT_EQ(Serve(tokens, 3).misses, 0u);
  EXPECT_GT(Serve(tokens, 1).misses, 0u);
}

TEST_F(WarmTest, ErrorsNameFlagValueAndRule) {
  const std::string good = WriteTokens("good", {1, 2});
  EXPECT_EQ(Run({}), kExitBadFlags);
  EXPECT_THAT(err_, HasSubstr("--trace is required"));
  EXPECT_EQ(Run({"--trace", good, "--layer-index", "x"}), kExitBadFlags);
  EXPECT_THAT(err_, HasSubstr("--layer-index"));
  EXPECT_EQ(Run({"--trace", good, "--layer-index", "2"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("--layer-index is 2: must be a zero-based PLE layer of the model: 1, 3"));
  EXPECT_EQ(Run({"--trace", WriteTokens("cut", {1, 2}, 1)}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("cut: 7 bytes, must be 32-bit ids"));
  EXPECT_EQ(Run({"--trace", WriteTokens("high", {1, 1000})}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("token 1 is 1000, must be below vocab_size 1000"));
  EXPECT_EQ(Run({"--trace", good, "--prefix", "layer2"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("--prefix layer2: "));
  EXPECT_EQ(Run({"--trace", good, "--server", "unix:/nonexistent", "--timeout", "50ms"}), kExitBadFlags);  // twice
  EXPECT_EQ(Metric("pleiad_row_lookups_total{layer=\"1\",result=\"miss\"}"), 0);
}

TEST(Warm, AServerWhoseRequestsHoldNoMoreThanTheOverlapIsRefused) {
  const TempDir dir;
  WriteCheckpoint(Spec(), dir.path());
  const InProcessServer server(dir.path(), [](pleiad::ServerFlags& flags) {
    flags.table = TableFlag::kCached;
    flags.max_tokens = 2;
  });
  client::Client client = server.Connect();
  const absl::Status status = Warm(&client, {1, 2, 3}, {}, nullptr).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--max-tokens of the server is 2: must be above ngram_size - 1 = 2"));
  const absl::StatusOr<WarmReport> fits = Warm(&client, {1, 2}, {}, nullptr);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->sum.rows, 16u);
}

}  // namespace
}  // namespace pleiad::cli
