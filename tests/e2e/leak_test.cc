// Sequences come and go, and nothing of them stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/freed_memory.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_clock.h"
#include "tests/support/process/resident_memory.h"
#include "tests/support/process/server_process.h"

namespace pleiad::testing {
namespace {

constexpr uint32_t kScale = kSanitized ? 20 : 1;

// As pleiad-server does; before main, since threads that are there have arenas already. This process, which is the
// clients too, gives freed memory back, so that what grows is in use.
[[maybe_unused]] const bool kSetUp = (LimitArenas(), true);

CheckpointSpec SmallSpec() {
  CheckpointSpec spec;
  spec.geometry.hidden_size = 8;
  spec.geometry.hc_count = 1;
  return spec;
}

void SayScale() {
  if (kScale != 1) std::cout << "sanitizer build: counts divided by " << kScale << ", resident memory not judged\n";
}

// Open calls in flight at once: the time of 200,000 round trips one by one is not what is measured here.
class OpenPipeline {
 public:
  explicit OpenPipeline(v1::Ple::Stub& stub) : stub_(stub) {}
  std::vector<uint64_t> Open(uint32_t count) {
    std::vector<std::unique_ptr<Call>> calls;
    for (uint32_t i = 0; i < count; ++i) {
      Call* call = calls.emplace_back(std::make_unique<Call>()).get();
      call->reader = stub_.AsyncOpenSequence(&call->context, {}, &queue_);
      call->reader->Finish(&call->response, &call->status, call);
    }
    std::vector<uint64_t> ids;
    for (uint32_t i = 0; i < count; ++i) {
      void* tag = nullptr;
      bool ok = false;
      queue_.Next(&tag, &ok);
      const Call* call = static_cast<const Call*>(tag);
      EXPECT_TRUE(call->status.ok()) << call->status.error_message();
      ids.push_back(call->response.sequence_id());
    }
    return ids;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::OpenSequenceResponse>> reader;
  };
  v1::Ple::Stub& stub_;
  grpc::CompletionQueue queue_;
};

std::string Gauges(const std::string& page) {
  std::string text;
  for (const char* name :
       {"pleiad_sequences", "pleiad_arena_slots{state=\"held\"}", "pleiad_arena_slots{state=\"arriving\"}",
        "pleiad_arena_slots{state=\"idle\"}", "pleiad_arena_slots{state=\"free\"}"}) {
    text += std::string(name) + " " + std::to_string(MetricValue(page, name)) + "\n";
  }
  return text;
}

TEST(LeakTest, TwoHundredThousandOpenStepReleaseCyclesLeaveNothing) {
  SayScale();
  constexpr uint32_t kCycles = 200000 / kScale, kWarm = 50000 / kScale, kGroup = 100;
  TempDir model;
  WriteCheckpoint(SmallSpec(), model.path());
  ServerProcess server(model.path(), "unix:" + (model / "s"), {"--log-level", "warning", "--threads", "1"});
  ASSERT_TRUE(server.WaitUntilReady());
  const std::string before = Gauges(ScrapeMetrics(server.metrics_port));
  const auto stub = v1::Ple::NewStub(grpc::CreateChannel(server.address, grpc::InsecureChannelCredentials()));
  OpenPipeline pipeline(*stub);
  grpc::ClientContext context;
  const auto stream = stub->ForwardStream(&context);
  const auto group = [&](uint32_t done) {
    if (HasFatalFailure()) return;
    v1::ForwardRequest request;
    for (const uint64_t id : pipeline.Open(kGroup)) {
      v1::Segment* segment = request.add_segments();
      segment->set_sequence_id(id);
      segment->set_num_tokens(1);
      request.add_token_ids(done % 1000);
      request.add_release_after(id);
    }
    request.mutable_highway()->set_zeros(true);
    v1::ForwardResponse response;
    ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
    ASSERT_EQ(response.status().code(), 0) << response.status().message();
  };
  const MemoryGrowth growth = MeasureGrowth(server.child.pid(), kWarm, kCycles, kGroup, group);
  ASSERT_FALSE(HasFatalFailure());
  std::cout << growth << "\n";
  if (!kSanitized) {
    EXPECT_LE(growth.bytes(), kMaxGrowthBytes);
  }
  ASSERT_TRUE(AwaitMetrics(server.metrics_port,
                           [](const std::string& page) { return MetricValue(page, "pleiad_sequences") == 0; }));
  const std::string page = ScrapeMetrics(server.metrics_port);
  EXPECT_EQ(Gauges(page), before);
  EXPECT_EQ(MetricValue(page, "pleiad_sequences_opened_total"), kCycles);
  EXPECT_EQ(MetricValue(page, "pleiad_sequences_closed_total{reason=\"released\"}"), kCycles);
  EXPECT_EQ(MetricValue(page, "pleiad_tokens_total{layer=\"1\"}"), kCycles);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());

  // One that is not released shows.
  pipeline.Open(1);
  EXPECT_NE(Gauges(ScrapeMetrics(server.metrics_port)), before);
}

TEST(LeakTest, SequencesOfAKilledClientExpireAndLeaveNothing) {
  SayScale();
  constexpr uint32_t kSequences = 10000 / kScale;
  // In cycles as above: 50,000 to warm up, 200,000 in all.
  constexpr uint32_t kWarm = 5, kRounds = 20;
  TempDir model;
  WriteCheckpoint(SmallSpec(), model.path());
  FakeClock clock;
  InProcessServer server(
      model.path(),
      [](ServerFlags& flags) {
        flags.max_sequences = kSequences;
        flags.threads = 1;
      },
      &clock);
  const std::string before = Gauges(ScrapeMetrics(server.metrics_port()));
  const auto abandon = [&](uint32_t done) {
    if (HasFatalFailure()) return;
    ChildProcess client({PLEIAD_ABANDONING_CLIENT, server.address(), std::to_string(kSequences)});
    ASSERT_EQ(client.ReadOutputLine(), "opened") << client.DrainError();
    client.Signal(SIGKILL);
    EXPECT_EQ(client.Wait(), -SIGKILL);
    // Full, and says so at once; the dead client's sequences live until their time is over.
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_EQ(server.stub().OpenSequence(&context, {}, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    clock.Advance(absl::Minutes(10) - absl::Milliseconds(1));
    EXPECT_EQ(MetricValue(ScrapeMetrics(server.metrics_port()), "pleiad_sequences"), kSequences);
    clock.Advance(absl::Milliseconds(2));
    ASSERT_TRUE(AwaitMetrics(server.metrics_port(),
                             [](const std::string& page) { return MetricValue(page, "pleiad_sequences") == 0; }));
    const std::string page = ScrapeMetrics(server.metrics_port());
    EXPECT_EQ(Gauges(page), before);
    EXPECT_EQ(MetricValue(page, "pleiad_sequences_closed_total{reason=\"expired\"}"), done + kSequences);
  };
  const MemoryGrowth growth = MeasureGrowth(::getpid(), kWarm * kSequences, kRounds * kSequences, kSequences, abandon);
  ASSERT_FALSE(HasFatalFailure());
  std::cout << growth << "\n";
  if (!kSanitized) {
    EXPECT_LE(growth.bytes(), kMaxGrowthBytes);
  }
}

}  // namespace
}  // namespace pleiad::testing
