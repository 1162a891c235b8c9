#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "client/cli/bench_load.h"
#include "client/cli/echo_stream.h"
#include "client/cli/marks.h"
#include "client/cli/scrape.h"
#include "tests/bench/bench_parts.h"
#include "tests/e2e/in_process_server.h"

namespace pleiad::bench {
namespace {

using cli::Arrivals;
using cli::BenchOptions;
using cli::BenchReport;
using cli::Transport;
using client::Client;
using ::testing::HasSubstr;

const std::string kModel = std::string(PLEIAD_SOURCE_DIR) + "/tests/golden/tiny-n3h8";

class BenchServerTest : public ::testing::Test {
 protected:
  BenchReport Run(const BenchOptions& options, const std::string& address) {
    Client client = testing::InProcessServer::ConnectTo(server_.address());
    BenchOptions all = options;
    all.address = address;
    all.shm_dir = shm_.path();
    all.layer_index = client.model().layers.front().layer_index;
    absl::StatusOr<BenchReport> report = RunBench(&client, all);
    if (!report.ok()) {
      ADD_FAILURE() << report.status();
      return {.loads = std::vector<cli::LoadReport>(1)};
    }
    return *std::move(report);
  }
  BenchReport Run(const BenchOptions& options) { return Run(options, server_.address()); }

  testing::TempDir shm_;
  testing::InProcessServer server_{kModel,
                                   [this](ServerFlags& flags) {
                                     flags.allow_client_regions = true;
                                     flags.shm_dir = shm_.path();
                                   },
                                   nullptr,
                                   {},
                                   BenchParts()};
};

BenchOptions Load(Transport transport) {
  BenchOptions options;
  options.transport = transport;
  options.load = {.sequences = 3, .tokens_per_step = 37};
  options.steps = 11;
  options.warmup = 2;
  options.streams = 2;
  return options;
}

TEST_F(BenchServerTest, WithoutAStageAndThroughTheEchoWhatWasSentComesBack) {
  for (const Transport transport :
       {Transport::kInline, Transport::kBf16Delta, Transport::kShm, Transport::kEcho, Transport::kEcho64}) {
    const BenchReport report = Run(Load(transport));
    EXPECT_EQ(report.loads[0].requests, 33u) << Name(transport);
    EXPECT_EQ(report.tokens, 3u * 13 * 37);
    EXPECT_EQ(report.checksum, report.input_checksum) << Name(transport);
    EXPECT_NE(report.checksum, 0u);
    EXPECT_GT(report.loads[0].p50_us, 0);
  }
}

TEST_F(BenchServerTest, AnEchoCutsAndOrdersNothing) {
  constexpr size_t kMessages = 40;
  std::vector<std::string> sent;
  std::vector<std::promise<std::string>> came(kMessages);
  cli::EchoStream stream(server_.address());
  for (size_t i = 0; i < kMessages; ++i) {
    // From none to 1.3 MB.
    std::string& text = sent.emplace_back(i * i * i * 20, '\0');
    std::iota(text.begin(), text.end(), static_cast<char>(i));
  }
  for (size_t i = 0; i < kMessages; ++i) {
    const grpc::Slice slice(sent[i]);
    stream.Send(grpc::ByteBuffer(&slice, 1), [&promise = came[i]](absl::StatusOr<grpc::ByteBuffer> message) {
      std::vector<grpc::Slice> slices;
      std::string text;
      if (message.ok() && message->Dump(&slices).ok()) {
        for (const grpc::Slice& part : slices) text.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
      promise.set_value(message.ok() ? text : "failed: " + message.status().ToString());
    });
  }
  for (size_t i = 0; i < kMessages; ++i) EXPECT_EQ(came[i].get_future().get(), sent[i]) << i;
}

TEST_F(BenchServerTest, TheServerItselfHasNoEchoAndAStage) {
  const testing::InProcessServer plain(kModel);
  Client client = testing::InProcessServer::ConnectTo(plain.address());
  BenchOptions options = Load(Transport::kEcho);
  options.address = plain.address();
  options.layer_index = client.model().layers.front().layer_index;
  EXPECT_TRUE(absl::IsUnimplemented(RunBench(&client, options).status()));
  options.transport = Transport::kInline;
  const absl::StatusOr<BenchReport> report = RunBench(&client, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(report->checksum, report->input_checksum);
}

TEST_F(BenchServerTest, AnOpenLoadCountsFromTheArrivalAndSendsAllOfIt) {
  for (const Arrivals arrivals : {Arrivals::kFixed, Arrivals::kPoisson}) {
    BenchOptions options;
    options.load = {.sequences = 2, .tokens_per_step = 1};
    options.steps = 200;
    options.warmup = 0;
    options.rate = 1e7;  // all arrive within a moment, so the last one waits for nearly all others
    options.arrivals = arrivals;
    const BenchReport report = Run(options);
    EXPECT_EQ(report.loads[0].requests, 400u);
    EXPECT_EQ(report.checksum, report.input_checksum);
    EXPECT_GT(report.loads[0].max_us, report.loads[0].seconds * 1e6 / 2);
  }
}

TEST_F(BenchServerTest, ASlowOpenLoadTakesItsTime) {
  BenchOptions options;
  options.load = {.sequences = 2, .tokens_per_step = 1};
  options.steps = 10;
  options.warmup = 1;
  options.rate = 200;
  options.arrivals = Arrivals::kFixed;
  // 20 measured arrivals, 5 ms apart.
  EXPECT_GE(Run(options).loads[0].seconds, 19 * 0.005);
}

TEST_F(BenchServerTest, CpuTimeOfBothSidesIsToldPerToken) {
  BenchOptions options = Load(Transport::kInline);
  options.metrics = "127.0.0.1:" + std::to_string(server_.metrics_port());
  const BenchReport report = Run(options);
  EXPECT_GT(report.client_cpu_seconds, 0);
  ASSERT_TRUE(report.server_cpu_seconds.has_value());
  EXPECT_GE(*report.server_cpu_seconds, 0);  // of whole ticks
  const client::ModelInfo model = server_.Connect().model();
  EXPECT_THAT(ReportJson(report, options, model), HasSubstr("\"server\": "));
  EXPECT_THAT(ReportTable(report), HasSubstr(", server "));
}

TEST_F(BenchServerTest, ScrapingTellsWhatIsWrong) {
  const std::string address = "localhost:" + std::to_string(server_.metrics_port());
  EXPECT_TRUE(cli::ScrapeMetric(address, "process_start_time_seconds").ok());
  EXPECT_TRUE(absl::IsNotFound(cli::ScrapeMetric(address, "process_start_time").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(cli::ScrapeMetric("localhost", "x").status()));
  EXPECT_TRUE(absl::IsUnavailable(cli::ScrapeMetric("127.0.0.1:1", "x").status()));
}

TEST(MarkSumTest, SeesEveryMarkHoweverTheTensorIsCutAndNothingElse) {
  std::vector<std::byte> tensor(3 * cli::kBlock + 7);
  for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(i * 31);
  cli::MarkSum whole;
  whole.Add(tensor);
  for (const size_t cut : {1, 2, 15, 16, 17, 4095, 4096, 4097, 9000}) {
    cli::MarkSum pieces;
    for (size_t at = 0; at < tensor.size(); at += cut) {
      pieces.Add(absl::MakeSpan(tensor).subspan(at, cut));
    }
    EXPECT_EQ(pieces.value(), whole.value()) << cut;
  }
  for (size_t i = 0; i < tensor.size(); ++i) {
    tensor[i] ^= std::byte{1};
    cli::MarkSum other;
    other.Add(tensor);
    EXPECT_EQ(other.value() != whole.value(), i % cli::kBlock < cli::kMark) << i;
    tensor[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace pleiad::bench
