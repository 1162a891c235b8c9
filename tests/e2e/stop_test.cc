// The way the process ends: under load, at once, past its budget, while loading, with an idle stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "server/checkpoint_loader.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/process/server_process.h"
#include "tests/support/test_device_flag.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// Waits for the end and says how long it took. No bound on it stands here: the server's own, 2 s, ends it with exit
// code 4 and a line in the log, which the server's tests show on a clock of their own; so exit code 0 says that it was
// kept.
int WaitAndSay(ServerProcess& server) {
  const absl::Time start = absl::Now();
  const int code = server.child.Wait();
  std::cout << "ended with " << code << " after " << absl::FormatDuration(absl::Now() - start) << "\n";
  return code;
}

class StopTest : public ::testing::Test {
 protected:
  StopTest() {
    CheckpointSpec spec;
    spec.geometry.hidden_size = 256;
    WriteCheckpoint(spec, model_.path());
  }
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags = {}, std::string listen = "") {
    if (listen.empty()) listen = "unix:" + (model_ / "s");
    flags.insert(flags.end(), {"--max-tokens", "1024"});
    auto server = std::make_unique<ServerProcess>(model_.path(), listen, flags);
    EXPECT_TRUE(server->WaitUntilReady());
    return server;
  }
  TempDir model_;
};

TEST_F(StopTest, UnderLoadEveryStepIsAnsweredAndTheServerEndsWithinItsBudget) {
  const auto server = Start({"--drain-timeout", "60s"});
  client::Client client = InProcessServer::ConnectTo(server->address);
  std::promise<void> loaded;
  std::atomic<int> running{0};
  std::vector<std::future<int>> steps;
  for (uint32_t i = 0; i < 6; ++i) {
    steps.push_back(std::async(std::launch::async, [&, i] {
      std::mt19937 random(90 + i);
      const Passage passage = RandomPassage(random, 8 + 40 * (i % 2), client.model());
      absl::StatusOr<client::Sequence> sequence = client.OpenSequence();
      EXPECT_TRUE(sequence.ok()) << sequence.status();
      const auto stream = *client.OpenStream();
      int answered = 0;
      for (bool draining = false; !draining;) {
        std::vector<std::future<absl::StatusOr<client::StepResult>>> burst;
        for (int k = 0; k < 4; ++k) burst.push_back(stream->Submit(StepOf(*sequence, passage, 0, passage.size())));
        for (auto& answer : burst) {
          const auto result = answer.get();
          EXPECT_TRUE(result.ok()) << result.status();
          if (!result.ok()) return -1;
          draining = draining || result->draining;
          if (++answered == 8 && ++running == 6) loaded.set_value();
        }
      }
      // As a client that moves on: a snapshot, then the release.
      const absl::StatusOr<client::SequenceSnapshot> snapshot = sequence->Snapshot();
      EXPECT_TRUE(snapshot.ok()) << snapshot.status();
      if (snapshot.ok()) {
        EXPECT_EQ(snapshot->layers[0].position, uint64_t(answered) * passage.size());
      }
      EXPECT_TRUE(sequence->Release().ok());
      return answered;
    }));
  }
  loaded.get_future().wait();
  server->child.Signal(SIGTERM);
  for (auto& answered : steps) EXPECT_GE(answered.get(), 8);
  EXPECT_EQ(WaitAndSay(*server), 0);
  EXPECT_THAT(server->child.DrainError(), HasSubstr("0 admitted step(s) not run"));
}

TEST_F(StopTest, ASecondSignalEndsTheDrainAtOnce) {
  const auto server = Start({"--drain-timeout", "1h"});
  client::Client client = InProcessServer::ConnectTo(server->address);
  client::Sequence sequence = *client.OpenSequence();
  server->child.Signal(SIGTERM);
  ASSERT_TRUE(AwaitMetrics(server->metrics_port,
                           [](const std::string& page) { return MetricValue(page, "pleiad_ready") == 0; }));
  EXPECT_TRUE(sequence.Get().ok()) << "it drains";
  server->child.Signal(SIGTERM);
  EXPECT_EQ(WaitAndSay(*server), 0) << "nothing was in flight";
  std::move(sequence).Detach();
}

TEST_F(StopTest, TheDrainTimeoutEndsWith0WhereEveryStepWasAnswered) {
  const auto server = Start({"--drain-timeout", "100ms"});
  client::Client client = InProcessServer::ConnectTo(server->address);
  client::Sequence sequence = *client.OpenSequence();
  server->child.Signal(SIGTERM);
  EXPECT_EQ(server->child.Wait(), 0);
  EXPECT_THAT(server->child.DrainError(), HasSubstr("drain timeout"));
  std::move(sequence).Detach();
}

// Two signals that are sent one right behind the other may arrive as one.
void TerminateTwice(const ServerProcess& server) {
  server.child.Signal(SIGTERM);
  EXPECT_TRUE(AwaitMetrics(server.metrics_port,
                           [](const std::string& page) { return MetricValue(page, "pleiad_ready") == 0; }));
  server.child.Signal(SIGTERM);
}

// A stream with far more work in flight than fits into the time between two signals.
struct Backlog {
  Backlog(v1::Ple::Stub& stub, uint64_t sequence, int steps) : stream(stub.ForwardStream(&context)) {
    v1::ForwardRequest request;
    request.add_segments()->set_sequence_id(sequence);
    request.mutable_segments(0)->set_num_tokens(1000);
    for (int i = 0; i < 1000; ++i) request.add_token_ids(static_cast<uint32_t>(i) % 50);
    request.mutable_highway()->set_zeros(true);
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(stream->Write(request));
  }
  // Reads to the end; the codes of the answers.
  std::vector<int> Finish() {
    std::vector<int> codes;
    v1::ForwardResponse response;
    while (stream->Read(&response)) codes.push_back(response.status().code());
    status = stream->Finish();
    return codes;
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream;
  grpc::Status status;
};

TEST_F(StopTest, StepsThatWereAdmittedAndNotRunGetUnavailableAndExitCode4) {
  // Twice: the end of the budget, and the second signal.
  for (const bool by_signal : {false, true}) {
    SCOPED_TRACE(by_signal);
    const auto server =
        Start({"--drain-timeout", by_signal ? "1h" : "0s", "--threads", "1", "--max-inflight-bytes", "2GiB"});
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub =
        v1::Ple::NewStub(grpc::CreateCustomChannel(server->address, grpc::InsecureChannelCredentials(), arguments));
    grpc::ClientContext context;
    v1::OpenSequenceResponse opened;
    ASSERT_TRUE(stub->OpenSequence(&context, {}, &opened).ok());
    Backlog backlog(*stub, opened.sequence_id(), 200);
    v1::ForwardResponse first;
    ASSERT_TRUE(backlog.stream->Read(&first));
    ASSERT_EQ(first.status().code(), 0);
    if (by_signal) {
      TerminateTwice(*server);
    } else {
      server->child.Signal(SIGTERM);
    }
    const std::vector<int> codes = backlog.Finish();
    EXPECT_EQ(WaitAndSay(*server), 4);
    size_t answered = 0;
    while (answered < codes.size() && codes[answered] == 0) ++answered;
    EXPECT_LT(answered, codes.size()) << "some were admitted and not run";
    for (size_t i = answered; i < codes.size(); ++i) {
      EXPECT_EQ(codes[i], static_cast<int>(grpc::StatusCode::UNAVAILABLE)) << i;
    }
    EXPECT_EQ(backlog.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(StopTest, AnIdleStreamHoldsNothingUp) {
  const auto server = Start({"--drain-timeout", "1h"});
  const auto stub = v1::Ple::NewStub(grpc::CreateChannel(server->address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->ForwardStream(&context);
  v1::ForwardRequest request;
  request.set_request_id(5);
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response)) << "it is open";
  server->child.Signal(SIGTERM);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(WaitAndSay(*server), 0);
}

TEST_F(StopTest, StartsAgainAtOnceOnTheSamePort) {
  std::string listen = "127.0.0.1:0";
  for (int round = 0; round < 3; ++round) {
    const auto server = Start({}, listen);
    ASSERT_THAT(server->address, HasSubstr("127.0.0.1:"));
    if (round > 0) {
      EXPECT_EQ(server->address, listen);
    }
    listen = server->address;
    client::Client client = InProcessServer::ConnectTo(server->address);
    client::Sequence sequence = *client.OpenSequence();
    std::mt19937 random(95);
    RunPassage(**client.OpenStream(), sequence, RandomPassage(random, 5, client.model()));
    // With the connection open.
    TerminateTwice(*server);
    EXPECT_EQ(server->child.Wait(), 0);
    std::move(sequence).Detach();
  }
}

// A load of which a test can say when it goes on.
class HeldLoader final : public ModelLoader {
 public:
  explicit HeldLoader(const ServerFlags& flags) : inner_(flags, nullptr) {}
  absl::StatusOr<ModelSummary> Open() override { return inner_.Open(); }
  absl::StatusOr<LoadedModel> Load(const LoadHooks& hooks) override {
    LoadHooks held = hooks;
    held.cancelled = [this, &hooks] {
      if (!held_.exchange(true)) {
        loading.set_value();
        go_on.get_future().wait();
      }
      return hooks.cancelled();
    };
    return inner_.Load(held);
  }

  std::promise<void> loading, go_on;

 private:
  CheckpointLoader inner_;
  std::atomic<bool> held_{false};
};

TEST(StopWhileLoadingTest, TerminatingWhileLoadingEndsTheLoad) {
  TempDir model;
  WriteCheckpoint({}, model.path());
  for (const int signals : {1, 2}) {
    ServerFlags flags;
    flags.model = model.path();
    flags.listen = {"unix:" + (model / "s")};
    flags.metrics_listen = "127.0.0.1:0";
    flags.table = TableFlag::kResident;
    flags.device = TestDeviceFlag();
    auto loader = std::make_unique<HeldLoader>(flags);
    HeldLoader& held = *loader;
    bool ready = false;
    auto server = Server::Start(flags, {.clock = nullptr,
                                        .loader = std::move(loader),
                                        .on_ready = [&ready](const ReadyInfo&) { ready = true; },
                                        .hard_exit = nullptr});
    ASSERT_TRUE(server.ok()) << server.status();
    held.loading.get_future().wait();
    for (int i = 0; i < signals; ++i) (*server)->Terminate();
    held.go_on.set_value();
    EXPECT_TRUE(absl::IsCancelled((*server)->WaitUntilLoaded()));
    EXPECT_EQ((*server)->Wait(), kExitDrained);
    EXPECT_FALSE(ready);
  }
}

}  // namespace
}  // namespace pleiad::testing
