// One address that stands for two servers, as a balancer's: each call and each new stream goes where the balancer says
// then, and streams stay where they are. On a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "client/error_info.h"
#include "client/replicated_client.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/hanging_connection.h"
#include "tests/client/test_steps.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {
namespace {

using pleiad::testing::IsOk;

constexpr uint32_t kLayer = 1;
constexpr char kPle[] = "pleiad.v1.Ple";

// Where a balancer sends what comes.
struct Balance {
  std::atomic<size_t> to{0};
  std::atomic<bool> by_connection{false};  // all of a connection goes where it went when it was made
};

// One connection of a client to the balancer.
class BalancedConnection final : public Connection {
 public:
  BalancedConnection(std::array<std::shared_ptr<Connection>, 2> servers, const Balance* balance)
      : servers_(std::move(servers)), balance_(balance), made_to_(balance->to) {}

  absl::StatusOr<ModelInfo> GetModel() override { return At().GetModel(); }
  absl::StatusOr<OpenResult> Open(const OpenOptions& options) override { return At().Open(options); }
  absl::StatusOr<SequenceStatus> GetSequence(SequenceId sequence, uint64_t epoch) override {
    return At().GetSequence(sequence, epoch);
  }
  absl::StatusOr<SequenceSnapshot> Snapshot(SequenceId sequence, uint64_t epoch,
                                            std::optional<uint32_t> layer_index) override {
    return At().Snapshot(sequence, epoch, layer_index);
  }
  absl::Status Restore(SequenceId sequence, uint64_t epoch, const SequenceSnapshot& snapshot) override {
    return At().Restore(sequence, epoch, snapshot);
  }
  absl::StatusOr<bool> Release(SequenceId sequence, uint64_t epoch) override { return At().Release(sequence, epoch); }
  void ReleaseLater(SequenceId sequence, uint64_t epoch) override { At().ReleaseLater(sequence, epoch); }
  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override { return At().Lookup(query); }
  absl::StatusOr<StepResult> Forward(const WireStep& step) override { return At().Forward(step); }
  absl::StatusOr<HealthState> Health(const std::string& service) override { return At().Health(service); }
  std::unique_ptr<StepConnection> OpenStream() override { return At().OpenStream(); }
  absl::StatusOr<std::unique_ptr<RegionLease>> AttachFile(const std::string& path, uint64_t bytes) override {
    return At().AttachFile(path, bytes);
  }
  absl::StatusOr<std::unique_ptr<RegionLease>> AttachDeviceMemory(const DeviceMemoryHandles& handles) override {
    return At().AttachDeviceMemory(handles);
  }

 private:
  Connection& At() { return *servers_[balance_->by_connection ? made_to_ : balance_->to.load()]; }

  const std::array<std::shared_ptr<Connection>, 2> servers_;
  const Balance* const balance_;
  const size_t made_to_;
};

class ReplicatedBalancerTest : public ::testing::Test {
 protected:
  ReplicatedBalancerTest() {
    for (FakePleServer& server : servers_) server.SetHealthy(kPle, true);
    options_.addresses = {"balancer:50051"};
    options_.affinity_key = "rank-3";
    options_.reconnect_timeout = absl::ZeroDuration();
    options_.rpc_timeout = absl::Minutes(7);
    options_.stall_timeout = absl::Hours(1);
    client_ = *ReplicatedClient::Connect(
        options_, [this](const ClientOptions&) { return ConnectToBalancer(); }, &clock_);
    sequence_.emplace(*client_->OpenSequence());
    EXPECT_THAT(Run(3), IsOk());
  }

  absl::StatusOr<Client> ConnectToBalancer() {
    std::array<std::shared_ptr<Connection>, 2> connections;
    for (size_t i = 0; i < servers_.size(); ++i) {
      ModelInfo model;
      auto connection = ConnectGrpc({.address = servers_[i].address()}, &model);
      if (!connection.ok()) return connection.status();
      connections[i] = std::make_shared<HangingConnection>(*connection, hangs_[i]);
    }
    return Client::Over(std::make_shared<BalancedConnection>(connections, &balance_));
  }

  // Random tokens, from where the sequence stands.
  std::future<absl::StatusOr<StepResult>> Submit(uint32_t tokens) {
    TestStep& from = steps_.emplace_back(RandomStep(&random_, tokens));
    Step step;
    step.segments.push_back({nullptr, tokens, /*fresh=*/false, sequence_->position(kLayer)});
    step.token_ids = from.tokens;
    step.highway.data =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from.highway.data()), from.highway.size() * 4);
    return client_->Submit(std::move(step), {&*sequence_});
  }
  // Blocks until the mover waits before its next attempt.
  void AwaitRetry() { clock_.AwaitDeadline(clock_.Now() + absl::Milliseconds(1), clock_.Now() + options_.max_backoff); }
  // Steps that the server does not answer, then a prestage; and the pause after that.
  void AwaitLoss() {
    clock_.Advance(options_.stall_timeout);
    clock_.AwaitDeadline(clock_.Now() + options_.rpc_timeout);
    EXPECT_EQ(client_->counters().moves, 0u);
    clock_.Advance(options_.rpc_timeout);
    AwaitRetry();
    clock_.Advance(options_.max_backoff);
  }
  absl::Status Run(uint32_t tokens) { return Submit(tokens).get().status(); }

  std::array<FakePleServer, 2> servers_;
  std::array<std::shared_ptr<Hang>, 2> hangs_{std::make_shared<Hang>(), std::make_shared<Hang>()};
  Balance balance_;
  ReplicatedOptions options_;
  FakeClock clock_;
  std::mt19937 random_{3};
  std::deque<TestStep> steps_;
  std::unique_ptr<ReplicatedClient> client_;
  std::optional<ReplicatedSequence> sequence_;
};

TEST_F(ReplicatedBalancerTest, AServerThatHangsIsLeftThoughAnotherOneAnswersForItsHealth) {
  hangs_[0]->Begin(Hang::Health::kToo);
  auto answer = Submit(2);
  hangs_[0]->AwaitHeld();
  balance_.to = 1;
  AwaitLoss();
  // What the old server may still have to say comes too late.
  const absl::StatusOr<StepResult> result = answer.get();
  hangs_[0]->End();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->segments[0].position, 5u) << "applied once";
  EXPECT_EQ(client_->counters().moves, 1u);
  EXPECT_THAT(Run(1), IsOk());
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 6u);
}

// The stream of the old server takes the steps; calls, and what is opened, are another's.
TEST_F(ReplicatedBalancerTest, AServerThatHangsBetweenStepsIsLeftWithTheNextOne) {
  hangs_[0]->Begin(Hang::Health::kToo);
  balance_.to = 1;
  absl::StatusOr<ReplicatedSequence> other = client_->OpenSequence();
  ASSERT_THAT(other, IsOk());
  *sequence_ = *std::move(other);
  auto answer = Submit(2);
  hangs_[0]->AwaitHeld();
  AwaitLoss();
  EXPECT_THAT(answer.get(), IsOk());
  EXPECT_EQ(client_->counters().moves, 1u);
}

TEST_F(ReplicatedBalancerTest, AServerThatTakesNothingIsLeftWithoutAnyStep) {
  hangs_[0]->Begin(Hang::Health::kAnswers);
  hangs_[0]->TakeNothing();
  auto snapshot = std::async(std::launch::async, [&] { return sequence_->Snapshot(); });
  clock_.AwaitDeadline(clock_.Now() + options_.rpc_timeout);
  balance_.to = 1;
  clock_.Advance(options_.rpc_timeout);
  AwaitRetry();
  clock_.Advance(options_.max_backoff);
  EXPECT_THAT(snapshot.get(), IsOk());
  EXPECT_EQ(client_->counters().moves, 1u);
}

TEST_F(ReplicatedBalancerTest, AServerThatCannotReadItsTableIsLeftThoughAnotherOneIsReady) {
  // The first step that meets the damage is what the balancer learns of it by.
  servers_[0].SetHealthy(kPle, false);
  servers_[0].FailNextSteps(1);
  balance_.to = 1;
  const absl::Status status = Run(1);
  EXPECT_EQ(ErrorReason(status), Reason::kTableUnreadable) << status;
  servers_[0].WaitUntilEmpty();
  EXPECT_EQ(client_->counters().drain_moves, 1u);
  EXPECT_THAT(Run(1), IsOk());
  EXPECT_EQ(sequence_->position(kLayer), 4u);
}

TEST_F(ReplicatedBalancerTest, AServerThatDrainsIsLeftByANewStreamAndReleasesWhatItHad) {
  // The balancer has not noticed yet.
  servers_[0].SetHealthy(kPle, false);
  servers_[0].SetDraining();
  EXPECT_THAT(Run(1), IsOk());
  AwaitRetry();
  EXPECT_THAT(Run(1), IsOk());
  EXPECT_EQ(client_->counters().drain_moves, 0u);
  EXPECT_EQ(servers_[0].open_sequences(), 1u);
  // Calls reach the old server no more, nor do releases by call.
  balance_.to = 1;
  clock_.Advance(options_.max_backoff);
  servers_[0].WaitUntilEmpty();
  EXPECT_EQ(client_->counters().drain_moves, 1u);
  EXPECT_EQ(servers_[1].open_sequences(), 1u);
  EXPECT_THAT(Run(1), IsOk());
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 6u);
  EXPECT_EQ(client_->counters().resent_steps, 0u);
}

TEST_F(ReplicatedBalancerTest, AServerThatDrainsIsLeftBehindABalancerOfConnectionsToo) {
  balance_.by_connection = true;
  balance_.to = 1;
  servers_[0].SetHealthy(kPle, false);
  servers_[0].SetDraining();
  EXPECT_THAT(Run(1), IsOk());
  servers_[0].WaitUntilEmpty();
  EXPECT_THAT(Run(1), IsOk());
  EXPECT_EQ(client_->counters().drain_moves, 1u);
  EXPECT_EQ(servers_[1].open_sequences(), 1u);
}

// As of one server without a balancer.
TEST_F(ReplicatedBalancerTest, AServerThatDrainsIsUsedWhileThereIsNoOther) {
  servers_[0].SetHealthy(kPle, false);
  servers_[0].SetDraining();
  EXPECT_THAT(Run(1), IsOk());
  for (int i = 0; i < 3; ++i) {
    AwaitRetry();
    EXPECT_THAT(Run(1), IsOk());
    clock_.Advance(options_.max_backoff);
  }
  AwaitRetry();
  EXPECT_GE(client_->counters().failed_attempts, 3u);
  EXPECT_EQ(client_->counters().drain_moves + client_->counters().moves, 0u);
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 7u);
  EXPECT_EQ(servers_[0].open_sequences(), 1u);
}

}  // namespace
}  // namespace pleiad::client::testing
