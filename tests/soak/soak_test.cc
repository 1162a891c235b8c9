// Clients that do everything at random to one server: no output is wrong, and nothing of them stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/soak/server_facts.h"
#include "tests/soak/stream_worker.h"
#include "tests/soak/tally.h"
#include "tests/soak/unary_worker.h"
#include "tests/support/process/resident_memory.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using SteadyClock = std::chrono::steady_clock;

// The long form goes on for so many seconds; without them each round is a number of operations.
std::optional<int> SoakSeconds() {
  const char* seconds = std::getenv("PLEIAD_TEST_SOAK_SECONDS");
  return seconds == nullptr ? std::nullopt : std::optional<int>(std::atoi(seconds));
}

constexpr int kRounds = 12, kWarmRounds = 3;  // of the long form: a quarter is warm-up, as in 50,000 of 200,000 cycles

// Each round ends when what was abandoned has expired.
int TtlSeconds() { return SoakSeconds() ? 5 : 1; }

constexpr uint64_t kWarmSteps = 50000, kJudgedSteps = 200000;

class SoakTest : public ::testing::Test {
 protected:
  SoakTest() {
    CheckpointSpec spec = TwoLayerSpec();
    // Some 4000 rows a layer, of which the arena has room for a few hundred.
    spec.ngram_vocab_size_base = 1009;
    WriteCheckpoint(spec, model_.path());
    server_ = std::make_unique<ServerProcess>(
        model_.path(), "unix:" + (model_ / "s"),
        std::vector<std::string>{"--table", "cached", "--cache-bytes", "8KiB", "--batch-invariant", "--max-tokens",
                                 "128", "--max-sequences", "4096", "--sequence-ttl", absl::StrCat(TtlSeconds(), "s"),
                                 // So much that a slow machine does not turn work away.
                                 "--max-inflight-bytes", "64MiB", "--threads", "1", "--log-level", "error"});
    if (!server_->WaitUntilReady()) std::abort();
    start_ = FactsOf(*server_);
    setup_.address = server_->address;
    setup_.sequence_ttl = absl::Seconds(TtlSeconds());
    setup_.model = InProcessServer::ConnectTo(server_->address).model();
    highways_ = std::make_unique<Highways>(256, setup_.model.channels, 7);
    calm_ = std::make_unique<Undisturbed>(model_.path(), highways_.get(), 256);
    setup_.highways = highways_.get();
    setup_.calm = calm_.get();
  }

  // Five clients at once, each until `more(operations so far)` says no.
  Tally Round(const std::function<bool(uint64_t operations)>& more) {
    ++setup_.seed;
    std::vector<std::future<Tally>> workers;
    for (uint32_t number = 0; number < 5; ++number) {
      workers.push_back(std::async(std::launch::async, [this, number, &more] {
        uint64_t operations = 0;
        const auto go_on = [&] { return more(operations++); };
        if (number == 4) return UnaryWorker(&setup_, number).Run(go_on);
        return StreamWorker(&setup_, number == 3 ? SoakClient::kReplicated : SoakClient::kOne, number).Run(go_on);
      }));
    }
    Tally tally;
    for (auto& worker : workers) tally += worker.get();
    return tally;
  }
  std::string Page() const { return ScrapeMetrics(server_->metrics_port); }

  TempDir model_;
  std::unique_ptr<ServerProcess> server_;
  ServerFacts start_;
  std::unique_ptr<Highways> highways_;
  std::unique_ptr<Undisturbed> calm_;
  SoakSetup setup_;
};

TEST_F(SoakTest, NoOutputIsWrongAndNothingStays) {
  const std::optional<int> seconds = SoakSeconds();
  const int rounds = seconds ? kRounds : 2, warm_rounds = seconds ? kWarmRounds : 1;
  Tally tally;
  ServerFacts first, last;
  size_t said = 0;
  uint64_t warm_steps = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto until = SteadyClock::now() + std::chrono::milliseconds(seconds.value_or(0) * 1000 / rounds);
    tally += Round([&](uint64_t operations) { return seconds ? SteadyClock::now() < until : operations < 150; });
    last = AwaitQuiet(*server_, round == 0 ? BeforeFirstCall(start_) : first);
    // Warm is as much as 50,000 cycles are, on a machine that is busy with something else too.
    if (round + 1 <= warm_rounds || (seconds && warm_steps < kWarmSteps)) {
      first = last;
      warm_steps = tally.steps;
    }
    std::cout << "round " << round + 1 << " of " << rounds << ": " << tally.steps << " steps, wrong " << tally.wrong
              << "; " << last << std::endl;
    for (size_t i = said; i < tally.examples.size(); ++i) std::cout << "wrong: " << tally.examples[i] << std::endl;
    said = tally.examples.size();
  }
  const std::string page = Page();
  std::cout << tally << "\nafter the warm-up: " << first << "\nat the end:        " << last << std::endl;
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_GT(tally.compared_outputs, 0u);
  EXPECT_GT(tally.compared_blobs, 0u);
  EXPECT_GT(tally.rewinds, 0u);
  EXPECT_GT(tally.restores, 0u);
  EXPECT_GT(tally.cancels, 0u);
  EXPECT_GT(MetricValue(page, "pleiad_row_evictions_total"), 0);
  EXPECT_THAT(WhatStays(first, last), IsEmpty());
  EXPECT_THAT(UnexplainedFailures(page, tally), IsEmpty());
  EXPECT_EQ(MetricValue(page, "pleiad_sequences_opened_total"),
            MetricValue(page, "pleiad_sequences_closed_total{reason=\"released\"}") +
                MetricValue(page, "pleiad_sequences_closed_total{reason=\"expired\"}"));
  if (seconds && (warm_steps < kWarmSteps || tally.steps < kJudgedSteps)) {
    ADD_FAILURE() << "memory cannot be judged: that takes " << kJudgedSteps << " steps, " << kWarmSteps
                  << " of them to warm up";
  } else if (seconds) {
    EXPECT_LE(last.resident_bytes, first.resident_bytes + kMaxGrowthBytes);
    EXPECT_LE(last.anonymous_bytes, first.anonymous_bytes + kMaxGrowthBytes);
  }
}

TEST_F(SoakTest, AWrongBitIsFound) {
  std::atomic<int> outputs{0};
  setup_.tamper = [&outputs](std::string* output) {
    if (++outputs == 10) (*output)[output->size() / 2] ^= 1;
  };
  const Tally tally = Round([&outputs](uint64_t operations) { return outputs < 10 || operations < 2; });
  EXPECT_EQ(tally.wrong, 1u);
  ASSERT_FALSE(tally.examples.empty());
  EXPECT_THAT(tally.examples[0], HasSubstr("first difference at"));
}

TEST_F(SoakTest, AConnectionAndASequenceThatStayAreFound) {
  const ServerFacts first = AwaitQuiet(*server_, BeforeFirstCall(start_));
  client::Client client = InProcessServer::ConnectTo(server_->address);
  const absl::StatusOr<client::Sequence> sequence = client.OpenSequence();
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const std::vector<std::string> stays = WhatStays(first, FactsOf(*server_));
  EXPECT_THAT(stays, Contains("pleiad_sequences: 0, then 1"));
  EXPECT_THAT(stays, Contains(HasSubstr("sockets: ")));
  EXPECT_THAT(stays, Contains(HasSubstr("descriptors: ")));
}

TEST_F(SoakTest, AFailureThatNobodyCausedIsFound) {
  const auto stub = v1::Ple::NewStub(InProcessServer::ChannelTo(server_->address));
  v1::ForwardRequest request;
  request.add_segments()->set_sequence_id(1);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status status = stub->Forward(&context, request, &response);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(UnexplainedFailures(Page(), {}), SizeIs(2));
  Tally tally;
  tally.refused[static_cast<absl::StatusCode>(status.error_code())] = 1;
  EXPECT_THAT(UnexplainedFailures(Page(), tally), IsEmpty());
}

}  // namespace
}  // namespace pleiad::testing
