// Many clients that stop reading, or inside a message, beside one that works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/process/resident_memory.h"
#include "tests/support/process/server_process.h"
#include "tests/support/raw_http2.h"

namespace pleiad::testing {
namespace {

constexpr char kForwardStream[] = "/pleiad.v1.Ple/ForwardStream";
constexpr size_t kPeers = 100;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBudget = 32 * kMiB;
// Beside messages: connections, their threads' heaps, what the working client's steps take.
constexpr uint64_t kBeside = 24 * kMiB;
constexpr uint32_t kLongStep = 2048;

class StuckPeersTest : public ::testing::Test {
 protected:
  StuckPeersTest() {
    CheckpointSpec spec;
    spec.geometry.hidden_size = 256;
    WriteCheckpoint(spec, model_.path());
    server_ = std::make_unique<ServerProcess>(
        model_.path(), "unix:" + (model_ / "s"),
        std::vector<std::string>{"--log-level", "warning", "--threads", "1", "--max-tokens", std::to_string(kLongStep),
                                 "--max-inflight-bytes", std::to_string(kBudget), "--batch-invariant"});
    EXPECT_TRUE(server_->WaitUntilReady());
    client_ = std::make_unique<client::Client>(InProcessServer::ConnectTo(server_->address));
    stream_ = *client_->OpenStream();
    std::mt19937 random(7);
    passage_ = RandomPassage(random, 400, client_->model());
    expected_ = Run();
    // Shows that it reads, and warms the server's memory up.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(), expected_);
    before_ = ResidentBytes(server_->child.pid());
  }

  // The working client's steps, on a sequence of their own.
  std::string Run() {
    const client::Sequence sequence = *client_->OpenSequence();
    return RunPassage(*stream_, sequence, passage_, {100});
  }

  std::unique_ptr<RawHttp2> NewPeer(const std::string& timeout = "") {
    auto peer = std::make_unique<RawHttp2>(server_->address, /*window=*/65535);
    peer->Call(1, kForwardStream, timeout);
    return peer;
  }
  // A small request with an answer of 8 MiB.
  static std::string LongStep() {
    v1::ForwardRequest request;
    request.add_segments()->set_num_tokens(kLongStep);
    for (uint32_t i = 0; i < kLongStep; ++i) request.add_token_ids(i % 50);
    request.mutable_highway()->set_zeros(true);
    return request.SerializeAsString();
  }

  double Metric(const std::string& name) { return MetricValue(ScrapeMetrics(server_->metrics_port), name); }
  double InFlight() { return Metric("pleiad_inflight_bytes"); }
  uint64_t GrownBy() {
    const uint64_t now = ResidentBytes(server_->child.pid());
    return now > before_ ? now - before_ : 0;
  }
  void ExpectWithin(uint64_t bytes, const char* what) {
    const uint64_t grown = GrownBy();
    std::cout << what << ": the server has grown by " << grown / kMiB << " MiB, "
              << static_cast<uint64_t>(InFlight()) / kMiB << " MiB in flight, the budget is " << kBudget / kMiB
              << " MiB\n";
    EXPECT_LE(InFlight(), static_cast<double>(kBudget));
    if (!kSanitized) {
      EXPECT_LE(grown, bytes);
    }
  }
  bool AwaitNothingInFlight() {
    return AwaitMetrics(server_->metrics_port,
                        [](const std::string& page) { return MetricValue(page, "pleiad_inflight_bytes") == 0; });
  }

  TempDir model_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::StepStream> stream_;
  Passage passage_;
  std::string expected_;
  uint64_t before_ = 0;
};

TEST_F(StuckPeersTest, ClientsThatNeverReadKeepWithinTheBudgetAndOthersGoOn) {
  const std::string step = LongStep();
  std::vector<std::unique_ptr<RawHttp2>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(NewPeer());
    for (int k = 0; k < 3; ++k) ASSERT_TRUE(peers.back()->SendPart(1, step, step.size() + 5));
    if (i % 10 == 9) {
      EXPECT_EQ(Run(), expected_) << i;
    }
  }
  EXPECT_GE(InFlight(), static_cast<double>(kBudget) / 2) << "they do hold what they may";
  ExpectWithin(kBudget + kBeside, "100 that never read");
  peers.clear();
  EXPECT_TRUE(AwaitNothingInFlight());
  EXPECT_EQ(Run(), expected_);
}

TEST_F(StuckPeersTest, ClientsThatStopInsideAMessageKeepWithinTheQuotaAndOthersGoOn) {
  const std::string message(6 * kMiB, 'x');
  std::vector<std::unique_ptr<RawHttp2>> peers;
  size_t ended = 0;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(NewPeer());
    ended += peers.back()->SendPart(1, message, 3 * kMiB) ? 0 : 1;
    if (i % 10 == 9) {
      EXPECT_EQ(Run(), expected_) << i;
    }
  }
  ExpectWithin(kBudget + kBeside, "100 that stop inside a message");
  std::cout << ended << " ended\n";
  peers.clear();
  EXPECT_EQ(Run(), expected_);
}

// Messages that were received count in the quota until they are answered, on whichever thread that is.
TEST_F(StuckPeersTest, AnswersGoOutWhileTheQuotaIsUsedUp) {
  const std::string message(16 * kMiB, 'x');
  const client::Sequence sequence = *client_->OpenSequence();
  std::atomic<bool> over{false};
  std::vector<std::thread> peers;
  for (int i = 0; i < 6; ++i) {
    peers.emplace_back([&] {
      while (!over) {
        const auto peer = NewPeer("1S");
        // The last byte never comes; who is ended, at its deadline if not before, comes back.
        if (peer->SendPart(1, message, message.size() + 4)) peer->ReadToEnd(1);
      }
    });
  }
  for (int i = 0; i < (kSanitized ? 12 : 60); ++i)
    EXPECT_EQ(RunPassage(*stream_, sequence, passage_, {100}).size(), expected_.size()) << i;
  over = true;
  for (std::thread& peer : peers) peer.join();
}

TEST_F(StuckPeersTest, WhatTheyHoldIsFreedAtTheirDeadlines) {
  const std::string step = LongStep(), message(6 * kMiB, 'x');
  std::vector<std::unique_ptr<RawHttp2>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(NewPeer("1S"));
    (void)peers.back()->SendPart(1, step, step.size() + 5);
    peers.push_back(NewPeer("1S"));
    (void)peers.back()->SendPart(1, message, 64 << 10);
  }
  for (const auto& peer : peers) peer->ReadToEnd(1);
  EXPECT_TRUE(AwaitNothingInFlight());
  EXPECT_EQ(Run(), expected_);
}

TEST_F(StuckPeersTest, AClientThatWritesMoreThanFitsIsAnsweredWhileItWrites) {
  constexpr int kSteps = 60;  // 1.6 MiB each way
  const auto stub = v1::Ple::NewStub(InProcessServer::ChannelTo(server_->address));
  grpc::ClientContext context;
  const auto stream = stub->ForwardStream(&context);
  std::vector<std::string> outputs;
  std::thread reader([&] {
    v1::ForwardResponse response;
    while (stream->Read(&response)) outputs.push_back(std::move(*response.mutable_output()->mutable_data()));
  });
  for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(stream->Write(RequestOf(/*sequence=*/0, passage_)));
  stream->WritesDone();
  reader.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(outputs.size(), kSteps);
  for (const std::string& output : outputs) EXPECT_TRUE(output == outputs[0]);
  EXPECT_EQ(outputs[0].size(), passage_.highway.size() * sizeof(float));
  ExpectWithin(kBudget + kBeside, "a client that writes 94 MiB at once");
}

}  // namespace
}  // namespace pleiad::testing
