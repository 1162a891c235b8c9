#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "client/cli/bench_load.h"
#include "client/cli/commands.h"
#include "client/cli/replay.h"
#include "client/cli/snapshot_file.h"
#include "client/cli/trace.h"
#include "core/base/numeric.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/test_steps.h"

namespace pleiad::cli {
namespace {

using client::Client;
using client::testing::FakePleServer;
using ::testing::HasSubstr;

constexpr uint32_t kChannels = 4;
constexpr uint64_t kTokens = 61;

class CliTest : public ::testing::Test {
 protected:
  CliTest() : folder_(std::filesystem::path(::testing::TempDir()) / ("pleiad_cli_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  static int Run(std::vector<std::string> args) {
    args.insert(args.begin(), "pleiad");
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    return Main(static_cast<int>(argv.size()), argv.data());
  }

  // What the toy stage gives for random tokens, by the toy stage itself.
  Trace Golden() {
    std::mt19937 rng(7);
    const client::testing::TestStep all = client::testing::RandomStep(&rng, kTokens);
    client::testing::FakeCarry carry(kChannels);
    std::vector<float> delta, highway_out, embeddings, conv;
    std::vector<int64_t> ids;
    for (uint64_t t = 0; t < kTokens; ++t) {
      const size_t h = carry.history.size();
      for (uint64_t id : client::testing::FakeRowIds(all.tokens[t], carry.history[h - 1], carry.history[h - 2])) {
        ids.push_back(static_cast<int64_t>(id));
      }
      const std::vector<uint64_t> row_ids(ids.end() - client::testing::kHeads, ids.end());
      for (uint16_t bits : client::testing::FakeEmbedding(row_ids)) embeddings.push_back(Bf16ToFloat(bits));
      const float* highway = &all.highway[t * kChannels];
      const std::vector<float> added = carry.Push(all.tokens[t], highway, kChannels);
      for (uint32_t c = 0; c < kChannels; ++c) highway_out.push_back(added[c] + highway[c]);
      delta.insert(delta.end(), added.begin(), added.end());
      if (t == 29) conv.assign(carry.rows.end() - client::testing::kStateLen * kChannels, carry.rows.end());
    }
    Trace trace;
    trace.PutI32("x.tokens", {kTokens}, std::vector<int32_t>(all.tokens.begin(), all.tokens.end()));
    trace.PutF32("x.highway_in", {kTokens, kChannels}, all.highway);
    trace.PutI64("x.ngram_ids", {kTokens, client::testing::kHeads}, ids);
    trace.PutF32("x.embeddings", {kTokens, client::testing::kEmbedDim}, embeddings);
    trace.PutF32("x.ple_out", {kTokens, kChannels}, delta);
    trace.PutF32("x.highway_out", {kTokens, kChannels}, highway_out);
    trace.PutF32("x.conv_after30", {client::testing::kStateLen, kChannels}, conv);
    trace.PutI32("x.step_lengths", {3}, {21, 1, 9});
    return trace;
  }

  const std::filesystem::path folder_;
};

TEST_F(CliTest, ATraceIsReadAsItWasWritten) {
  const Trace trace = Golden();
  ASSERT_TRUE(trace.Write(Path("t.safetensors")).ok());
  const absl::StatusOr<Trace> read = Trace::Read(Path("t.safetensors"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read->I32("x.tokens"), *trace.I32("x.tokens"));
  EXPECT_EQ(*read->F32("x.ple_out", kTokens), *trace.F32("x.ple_out", kTokens));
  EXPECT_EQ(*read->I64("x.ngram_ids", kTokens), *trace.I64("x.ngram_ids", kTokens));
}

TEST_F(CliTest, TheGoldenFilesAreTraces) {
  const absl::StatusOr<Trace> trace =
      Trace::Read(std::string(PLEIAD_SOURCE_DIR) + "/tests/golden/tiny-n3h8/golden.safetensors");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->I32("layer2.tokens")->size(), 61u);
  EXPECT_EQ(trace->F32("layer2.highway_in", 61)->size(), 61u * 512);
  EXPECT_EQ(trace->I64("layer2.ngram_ids", 61)->size(), 61u * 16);
  EXPECT_EQ(trace->I32("run.layer2.step_lengths")->front(), 21u);
}

TEST_F(CliTest, AMalformedTraceIsRefusedWithTheRule) {
  const auto read = [&](const std::string& header, const std::string& data) {
    std::ofstream file(Path("bad"), std::ios::binary);
    const uint64_t size = header.size();
    file.write(reinterpret_cast<const char*>(&size), 8) << header << data;
    file.close();
    return std::string(Trace::Read(Path("bad")).status().message());
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(read(good, "12345678"), "");
  EXPECT_THAT(read(good, "1234567"), HasSubstr("leave the 7 bytes"));
  EXPECT_THAT(read(good, "123456789"), HasSubstr("behind the last tensor"));
  EXPECT_THAT(read("[]", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(read("{", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(read(R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})", "12345678"), HasSubstr("F16"));
  EXPECT_THAT(read(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"), HasSubstr("12 bytes"));
  EXPECT_THAT(read(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", "12345678"), HasSubstr("integers"));
  EXPECT_THAT(read(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", "12345678"),
              HasSubstr("overflows"));
  EXPECT_THAT(read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                   "1234"),
              HasSubstr("overlap"));
  std::ofstream(Path("bad"), std::ios::binary) << "\xff\xff\xff\xff\xff\xff\xff\xff";
  EXPECT_THAT(Trace::Read(Path("bad")).status().message(), HasSubstr("leaves the file"));
  EXPECT_TRUE(absl::IsNotFound(Trace::Read(Path("none")).status()));
}

TEST_F(CliTest, RunAgreesWithATraceOfTheSameStage) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  const Trace trace = Golden();
  const absl::StatusOr<std::vector<Comparison>> comparisons = Replay(&client, trace, {.prefix = "x", .bound = 1e-6});
  ASSERT_TRUE(comparisons.ok()) << comparisons.status();
  EXPECT_EQ(comparisons->size(), 6u);  // ids, embeddings, DELTA, HIGHWAY twice, conv
  EXPECT_TRUE(AllPassed(*comparisons));
  std::ostringstream table;
  PrintTable(*comparisons, table);
  EXPECT_THAT(table.str(), HasSubstr("HIGHWAY - input"));
  server.WaitUntilEmpty();  // what it opened is released
}

TEST_F(CliTest, OneFlippedValueOfAnyExpectedTensorMakesRunFail) {
  FakePleServer server;
  ASSERT_TRUE(Golden().Write(Path("good")).ok());
  EXPECT_EQ(Run({"run", "--server", server.address(), "--trace", Path("good"), "--prefix", "x"}), kExitOk);
  for (const char* name : {"x.ple_out", "x.highway_out", "x.conv_after30", "x.embeddings"}) {
    Trace trace = Golden();
    const uint64_t rows = std::string(name) == "x.conv_after30" ? client::testing::kStateLen : kTokens;
    std::vector<float> values = *trace.F32(name, rows);
    values[5] = -values[5];
    trace.PutF32(name, {rows, values.size() / rows}, values);
    ASSERT_TRUE(trace.Write(Path("bad")).ok());
    EXPECT_EQ(Run({"run", "--server", server.address(), "--trace", Path("bad"), "--prefix", "x"}), kExitDisagrees)
        << name;
  }
  Trace trace = Golden();
  std::vector<uint64_t> ids = *trace.I64("x.ngram_ids", kTokens);
  ids[3] ^= 1;
  trace.PutI64("x.ngram_ids", {kTokens, client::testing::kHeads}, std::vector<int64_t>(ids.begin(), ids.end()));
  ASSERT_TRUE(trace.Write(Path("bad")).ok());
  EXPECT_EQ(Run({"run", "--server", server.address(), "--trace", Path("bad"), "--prefix", "x"}), kExitDisagrees);
}

TEST_F(CliTest, ANanNeverPasses) {
  EXPECT_TRUE(std::isnan(RelativeL2({NAN, 1}, {1, 1})));
  EXPECT_TRUE(std::isnan(RelativeL2({1, 1}, {NAN, 1})));
  EXPECT_DOUBLE_EQ(RelativeL2({3, 5}, {3, 4}), 0.2);
  EXPECT_DOUBLE_EQ(RelativeL2({0, 0}, {0, 0}), 0);
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  Trace trace = Golden();
  std::vector<float> values = *trace.F32("x.ple_out", kTokens);
  values[0] = NAN;
  trace.PutF32("x.ple_out", {kTokens, kChannels}, values);
  EXPECT_FALSE(AllPassed(*Replay(&client, trace, {.prefix = "x", .bound = 1e9})));
}

TEST_F(CliTest, StepsCutTheTraceAndTheLastOneRepeats) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  const Trace trace = Golden();
  for (const std::vector<uint32_t>& steps : {std::vector<uint32_t>{1}, {40, 20, 5}, {9, 1, 1}}) {
    const auto comparisons = Replay(&client, trace, {.prefix = "x", .steps = steps, .bound = 1e-6});
    ASSERT_TRUE(comparisons.ok()) << comparisons.status();
    EXPECT_TRUE(AllPassed(*comparisons));
  }
  for (const std::vector<uint32_t>& steps : {std::vector<uint32_t>{0}, {1, 9999}, {61, 5}, {4294967295u}}) {
    const absl::Status refused = Replay(&client, trace, {.prefix = "x", .steps = steps}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("steps[", steps.size() - 1, "] ", steps.back())));
    EXPECT_THAT(refused.message(), HasSubstr("must have 1 to 61 tokens and begin before the end of x.tokens, 61"));
  }
  EXPECT_TRUE(absl::IsNotFound(Replay(&client, trace, {.prefix = "y"}).status()));
}

TEST_F(CliTest, ADisturbedReplayAgreesToo) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  const Trace trace = Golden();
  const auto comparisons = Replay(&client, trace, {.prefix = "x", .steps = {21, 3}, .bound = 1e-6, .disturb = true});
  ASSERT_TRUE(comparisons.ok()) << comparisons.status();
  EXPECT_EQ(comparisons->size(), 8u);  // as undisturbed, and each replay's carry after its restore
  EXPECT_TRUE(AllPassed(*comparisons));
  server.WaitUntilEmpty();
  EXPECT_TRUE(
      absl::IsInvalidArgument(Replay(&client, trace, {.prefix = "x", .steps = {kTokens}, .disturb = true}).status()));
}

TEST_F(CliTest, ADisturbanceThatLosesTheCarryIsSeen) {
  FakePleServer server({.forget_rows_on_restore = true});
  Client client = *Client::Connect({.address = server.address()});
  const auto comparisons = Replay(&client, Golden(), {.prefix = "x", .bound = 1e-6, .disturb = true});
  ASSERT_TRUE(comparisons.ok()) << comparisons.status();
  EXPECT_FALSE(AllPassed(*comparisons));
}

TEST_F(CliTest, PercentilesAreNearestRank) {
  std::vector<double> values;
  for (int i = 1; i <= 100; ++i) values.push_back(i);
  EXPECT_EQ(Percentile(values, 50), 50);
  EXPECT_EQ(Percentile(values, 90), 90);
  EXPECT_EQ(Percentile(values, 99), 99);
  EXPECT_EQ(Percentile(values, 100), 100);
  EXPECT_EQ(Percentile({1, 2, 3}, 50), 2);
  EXPECT_EQ(Percentile({1, 2, 3}, 99), 3);
  EXPECT_EQ(Percentile({7}, 1), 7);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST_F(CliTest, BenchCountsWhatItSent) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  BenchOptions options;
  options.load = {.sequences = 5, .tokens_per_step = 2};
  options.beside = {{.sequences = 1, .tokens_per_step = 20}};
  options.sequences_per_request = 2;
  options.steps = 7;
  options.warmup = 3;
  options.streams = 2;
  const absl::StatusOr<BenchReport> report = RunBench(&client, options);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->loads.size(), 2u);
  EXPECT_EQ(report->loads[0].requests, 3u * 7);
  EXPECT_EQ(report->loads[0].hit_rate, 1.0);
  EXPECT_GT(report->loads[0].p50_us, 0);
  EXPECT_LE(report->loads[0].p50_us, report->loads[0].p99_us);
  EXPECT_THAT(ReportJson(*report, options, client.model()), HasSubstr("\"hit_rate\": 1.0"));
  EXPECT_THAT(ReportTable(*report), HasSubstr("tokens/s"));
  server.WaitUntilEmpty();
}

TEST_F(CliTest, BenchTellsByAChecksumWhatTheServerMadeOfTheTensors) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  BenchOptions options;
  options.load = {.sequences = 3, .tokens_per_step = 2};
  options.steps = 5;
  const absl::StatusOr<BenchReport> first = RunBench(&client, options), again = RunBench(&client, options);
  options.seed = 2;
  const absl::StatusOr<BenchReport> other = RunBench(&client, options);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->checksum, again->checksum);
  EXPECT_EQ(first->input_checksum, again->input_checksum);
  EXPECT_NE(first->checksum, first->input_checksum);
  EXPECT_NE(first->checksum, other->checksum);
  EXPECT_NE(first->input_checksum, other->input_checksum);
  EXPECT_EQ(first->tokens, 3u * 15 * 2);
}

TEST_F(CliTest, BenchOverSeveralServersEndsAsOverOne) {
  FakePleServer one, other;
  Client client = *Client::Connect({.address = one.address()});
  BenchOptions options;
  options.load.sequences = 3;
  options.steps = 20;
  options.streams = 2;
  const absl::StatusOr<BenchReport> alone = RunBench(&client, options);
  options.replicas = {one.address(), other.address()};
  one.SetDraining();
  const absl::StatusOr<BenchReport> both = RunBench(&client, options);
  ASSERT_TRUE(alone.ok() && both.ok()) << both.status();
  EXPECT_EQ(both->tokens, alone->tokens);
  EXPECT_EQ(both->checksum, alone->checksum);
  one.WaitUntilEmpty();
  options.transport = Transport::kShm;
  EXPECT_TRUE(absl::IsInvalidArgument(RunBench(&client, options).status()));
}

TEST_F(CliTest, BenchEndsWithTheFirstFailure) {
  FakePleServer server;
  server.FailNextSteps(1);
  Client client = *Client::Connect({.address = server.address()});
  EXPECT_TRUE(absl::IsDataLoss(RunBench(&client, {}).status()));
}

TEST_F(CliTest, ASnapshotGoesToAFileAndBack) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  auto stream = *client.OpenStream();
  client::Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(9);
  const auto head = client::testing::RandomStep(&rng, 20), tail = client::testing::RandomStep(&rng, 3);
  ASSERT_TRUE(stream->Run(head.For(sequence)).ok());
  const std::string id = std::to_string(static_cast<uint64_t>(sequence.id()));
  ASSERT_EQ(Run({"snapshot", "--server", server.address(), "--sequence", id, "--out", Path("s")}), kExitOk);
  const std::string expected = stream->Run(tail.For(sequence))->output;
  ASSERT_EQ(Run({"restore", "--server", server.address(), "--in", Path("s"), "--sequence", id}), kExitOk);
  client::Sequence again = *client.Attach(sequence.id());
  EXPECT_EQ(again.position(1), 20u);
  EXPECT_EQ(stream->Run(tail.For(again))->output, expected);
  ::testing::internal::CaptureStdout();
  ASSERT_EQ(Run({"restore", "--server", server.address(), "--in", Path("s")}), kExitOk);
  client::Sequence opened = *client.Attach(client::SequenceId{std::stoull(::testing::internal::GetCapturedStdout())});
  EXPECT_EQ(stream->Run(tail.For(opened))->output, expected);

  std::fstream file(Path("s"), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(60);
  file.put('\x55');
  file.close();
  EXPECT_TRUE(absl::IsDataLoss(ReadSnapshot(Path("s")).status()));
}

TEST_F(CliTest, ThePythonExampleRunsThrough) {
  FakePleServer server;
  const std::string command =
      std::string("/usr/bin/python3 " PLEIAD_SOURCE_DIR "/deploy/example.py ") + server.address() + " > " + Path("out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::stringstream out;
  out << std::ifstream(Path("out")).rdbuf();
  EXPECT_THAT(out.str(), HasSubstr("step 3: position 5"));
  EXPECT_THAT(out.str(), HasSubstr("released: True"));
}

TEST_F(CliTest, HealthAndInfoTellByTheirExitCode) {
  FakePleServer server;
  EXPECT_EQ(Run({"health", "--server", server.address()}), kExitOk);
  server.SetHealthy("pleiad.live", false);
  EXPECT_EQ(Run({"health", "--server", server.address(), "--service", "pleiad.live"}), kExitDisagrees);
  EXPECT_EQ(Run({"info", "--server", server.address()}), kExitOk);
  EXPECT_EQ(Run({"info", "--server", "unix:/nonexistent", "--timeout", "0.05"}), kExitFailed);
  EXPECT_EQ(Run({"info", "--server", "unix:/nonexistent", "--timeout", "50ms"}), kExitFailed);
}

TEST_F(CliTest, BadFlagsAreExitCodeTwo) {
  EXPECT_EQ(Run({}), kExitBadFlags);
  EXPECT_EQ(Run({"nothing"}), kExitBadFlags);
  EXPECT_EQ(Run({"run", "--trace", "x"}), kExitBadFlags);
  EXPECT_EQ(Run({"bench", "--steps", "0"}), kExitBadFlags);
  EXPECT_EQ(Run({"bench", "--beside", "3"}), kExitBadFlags);
  EXPECT_EQ(Run({"bench", "--rate", "-1"}), kExitBadFlags);
  EXPECT_EQ(Run({"bench", "--arrivals", "never"}), kExitBadFlags);
  EXPECT_EQ(Run({"bench", "--bf16", "--transport", "echo"}), kExitBadFlags);
  for (const char* transport : {"cuda-ipc", "pigeon"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run({"bench", "--transport", transport}), kExitBadFlags);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(std::string("--transport ") + transport + ": "));
  }
  for (const std::string timeout : {"2 parsecs", "0", "-1s", "inf", "nan"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run({"health", "--timeout=" + timeout}), kExitBadFlags);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("--timeout: '" + timeout + "': must be a time above 0, as 30s, 500ms or 2 (seconds)"));
  }
  std::ofstream(Path("c.toml")) << "unknown = 1\n";
  EXPECT_EQ(Run({"--config", Path("c.toml"), "health"}), kExitBadFlags);
  EXPECT_EQ(Run({"--help"}), kExitOk);
}

TEST_F(CliTest, FlagsGoBeforeTheEnvironmentAndThatBeforeTheFile) {
  FakePleServer server;
  std::ofstream(Path("c.toml")) << "[health]\nserver = \"" << server.address() << "\"\n";
  EXPECT_EQ(Run({"--config", Path("c.toml"), "health"}), kExitOk);
  setenv("PLEIAD_SERVER", "unix:/nonexistent", 1);
  EXPECT_EQ(Run({"--config", Path("c.toml"), "health"}), kExitFailed);
  EXPECT_EQ(Run({"--config", Path("c.toml"), "health", "--server", server.address()}), kExitOk);
  setenv("PLEIAD_SERVER", "", 1);
  EXPECT_EQ(Run({"--config", Path("c.toml"), "health"}), kExitOk) << "an empty one says nothing";
  unsetenv("PLEIAD_SERVER");
}

}  // namespace
}  // namespace pleiad::cli
