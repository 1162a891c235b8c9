#include "client/replicated_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <optional>
#include <random>
#include <utility>

#include "client/error_info.h"
#include "client/internal/replica_set.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/faulty_connection.h"
#include "tests/client/test_steps.h"
#include "tests/client/twins.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr uint32_t kLayer = 1;

// Three replicas, and a fourth server that nothing disturbs.
class ReplicatedClientTest : public ::testing::Test {
 protected:
  ReplicatedOptions Options() {
    ReplicatedOptions options;
    for (FakePleServer& server : servers_) options.addresses.push_back(server.address());
    options.affinity_key = "rank-3";
    options.reconnect_timeout = absl::ZeroDuration();
    options.initial_backoff = absl::Milliseconds(1);
    options.max_backoff = absl::Milliseconds(10);
    options.retry_budget = 1e6;
    options.connect_timeout = absl::Seconds(30);
    options.give_up_after = absl::Minutes(5);
    options.stall_timeout = absl::Minutes(5);
    return options;
  }
  static std::unique_ptr<ReplicatedClient> Connect(
      const ReplicatedOptions& options, ReplicatedClient::Connector connector = &ReplicatedClient::ConnectIfReady,
      internal::Clock* clock = nullptr) {
    absl::StatusOr<std::unique_ptr<ReplicatedClient>> client = ReplicatedClient::Connect(options, connector, clock);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  // The step for a segment of whichever sequence is passed beside it.
  static Step StepOf(const TestStep& from) {
    Step step;
    step.segments.push_back({nullptr, static_cast<uint32_t>(from.tokens.size()), from.fresh, from.position});
    step.token_ids = from.tokens;
    step.highway.data =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from.highway.data()), from.highway.size() * 4);
    return step;
  }
  FakePleServer& Serving(const ReplicatedClient& client) { return servers_[client.replica()]; }

  std::array<FakePleServer, 3> servers_;
  FakePleServer calm_server_;
  Client calm_ = *Client::Connect({.address = calm_server_.address()});
};

TEST_F(ReplicatedClientTest, TheReplicaIsTheFirstOfItsKeyAndEveryCallCarriesTheKey) {
  const ReplicatedOptions options = Options();
  const auto client = Connect(options);
  EXPECT_EQ(client->replica(), internal::RendezvousOrder(options.addresses, "rank-3")[0]);
  std::optional<ReplicatedSequence> sequence = *client->OpenSequence();
  std::mt19937 random(1);
  const TestStep step = RandomStep(&random, 3);
  ASSERT_TRUE(client->Run(StepOf(step), {&*sequence}).ok());
  const absl::StatusOr<SequenceSnapshot> snapshot = sequence->Snapshot();
  ASSERT_TRUE(snapshot.ok() && sequence->Restore(*snapshot).ok() && *sequence->Release());
  // What a Client has besides.
  Client one = *Client::Connect({.address = options.addresses[client->replica()], .affinity_key = "rank-3"});
  ASSERT_TRUE(one.Lookup({.segments = {{1}}, .token_ids = {5}}).ok());
  const Sequence owned = *one.OpenSequence();
  ASSERT_TRUE(one.Attach(owned.id()).ok());
  const auto affinities = Serving(*client).affinities();
  for (const char* method :
       {"GetModel", "OpenSequence", "ForwardStream", "Lookup", "GetSequence", "Snapshot", "Restore", "Release"}) {
    EXPECT_EQ(affinities.count(method), 1u) << method;
  }
  EXPECT_THAT(affinities, Each(Pair(::testing::_, "rank-3")));
  EXPECT_THAT(calm_server_.affinities(), Each(Pair(::testing::_, ""))) << "without a key nothing is sent";
}

TEST_F(ReplicatedClientTest, AtRandomBreaksOnEveryReplicaOutputsAndSnapshotsEqualAnUndisturbedRun) {
  for (const uint64_t budget : {uint64_t{0}, uint64_t{4} << 20}) {
    std::mt19937 random(17);
    size_t connections = 0;
    // Each connection breaks before, in and after some step, as far as it gets.
    const auto connector = [&](const ClientOptions& to) -> absl::StatusOr<Client> {
      ModelInfo model;
      absl::StatusOr<std::shared_ptr<Connection>> connection = ConnectGrpc(to, &model);
      if (!connection.ok()) return connection.status();
      std::vector<Kill> kills;
      for (const KillPoint point :
           {KillPoint::kBeforeSend, KillPoint::kAfterSend, KillPoint::kReplyLost, KillPoint::kAfterReply}) {
        kills.push_back({point, 60 + random() % 100});
      }
      ++connections;
      return Client::Over(std::make_shared<FaultyConnection>(*connection, std::move(kills)));
    };
    ReplicatedOptions options = Options();
    options.snapshot_every = 16;
    options.max_log_bytes = budget;
    const auto client = Connect(options, connector);
    std::vector<std::unique_ptr<Twins>> twins;
    for (uint32_t i = 0; i < 4; ++i) twins.push_back(std::make_unique<Twins>(client.get(), &calm_, 100 + i));
    for (int round = 0; round < 120; ++round) {
      SCOPED_TRACE(absl::StrCat("budget ", budget, ", round ", round));
      for (auto& twin : twins) ASSERT_NO_FATAL_FAILURE(twin->Burst());
    }
    for (auto& twin : twins) twin->ExpectEqualBlobs();
    const ReplicatedCounters counters = client->counters();
    EXPECT_GE(counters.moves, 10u);
    EXPECT_GE(counters.replayed_tokens, counters.moves);
    EXPECT_GE(counters.resent_steps, counters.moves / 2);
    EXPECT_EQ(counters.dropped, 0u);
    EXPECT_EQ(counters.given_up, 0u);
    EXPECT_GT(connections, 3u) << "replicas are used again";
  }
}

TEST_F(ReplicatedClientTest, AServerThatStopsIsLeftAndOneThatIsBackEmptyIsUsedAgain) {
  const auto client = Connect(Options());
  Twins twins(client.get(), &calm_, 5);
  std::vector<size_t> replicas;
  for (int i = 0; i < 8; ++i) {
    ASSERT_NO_FATAL_FAILURE(twins.Burst());
    FakePleServer& left = Serving(*client);
    replicas.push_back(client->replica());
    left.Stop();
    ASSERT_NO_FATAL_FAILURE(twins.Burst());
    EXPECT_NE(client->replica(), replicas.back());
    left.Forget();
    left.Restart();
  }
  twins.ExpectEqualBlobs();
  EXPECT_GE(client->counters().replayed_tokens, 8u);
}

TEST_F(ReplicatedClientTest, SequencesThatAServerHasForgottenAreBuiltThereAgain) {
  ReplicatedOptions options = Options();
  options.reconnect_timeout = options.rpc_timeout = absl::Minutes(1);
  const auto client = Connect(options);
  Twins one(client.get(), &calm_, 6), other(client.get(), &calm_, 7);
  const size_t replica = client->replica();
  for (int i = 0; i < 10; ++i) {
    ASSERT_NO_FATAL_FAILURE(one.Burst());
    ASSERT_NO_FATAL_FAILURE(other.Burst());
    Serving(*client).Forget();
    if (i % 2 == 0) Serving(*client).Restart();
  }
  one.ExpectEqualBlobs();
  other.ExpectEqualBlobs();
  EXPECT_EQ(client->replica(), replica);
  EXPECT_GE(client->counters().mended, 20u);
  EXPECT_EQ(client->counters().moves, 0u);
}

TEST_F(ReplicatedClientTest, ADrainingServerIsLeftWithoutAFailedStepAndReleasesWhatItHad) {
  const auto client = Connect(Options());
  Twins one(client.get(), &calm_, 8), other(client.get(), &calm_, 9);
  for (int i = 0; i < 6; ++i) {
    ASSERT_NO_FATAL_FAILURE(one.Burst());
    FakePleServer& left = Serving(*client);
    left.SetDraining();
    ASSERT_NO_FATAL_FAILURE(one.Burst());
    ASSERT_NO_FATAL_FAILURE(other.Burst());
    left.WaitUntilEmpty();
    left.Forget();
  }
  one.ExpectEqualBlobs();
  other.ExpectEqualBlobs();
  EXPECT_EQ(client->counters().drain_moves, 6u);
  EXPECT_EQ(client->counters().moves, 0u);
  EXPECT_EQ(client->counters().resent_steps, 0u);
}

TEST_F(ReplicatedClientTest, GoingBackToABetterServerUnderLoadChangesNoOutput) {
  ReplicatedOptions options = Options();
  options.move_back_interval = absl::Milliseconds(1);
  const auto client = Connect(options);
  const size_t first = client->replica();
  Twins one(client.get(), &calm_, 20), other(client.get(), &calm_, 21);
  for (int i = 0; i < 10; ++i) {
    servers_[first].Stop();
    ASSERT_NO_FATAL_FAILURE(one.Burst());
    servers_[first].Forget();
    servers_[first].Restart();
    do {
      ASSERT_NO_FATAL_FAILURE(one.Burst());
      ASSERT_NO_FATAL_FAILURE(other.Burst());
    } while (client->replica() != first);
  }
  one.ExpectEqualBlobs();
  other.ExpectEqualBlobs();
  EXPECT_GE(client->counters().moves_back, 10u);
  EXPECT_EQ(client->counters().dropped, 0u);
}

TEST_F(ReplicatedClientTest, ANewSequenceMakesADrainingServerBeLeft) {
  const auto client = Connect(Options());
  FakePleServer& left = Serving(*client);
  left.SetDraining();
  const absl::StatusOr<ReplicatedSequence> sequence = client->OpenSequence();
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_NE(&Serving(*client), &left);
  EXPECT_EQ(Serving(*client).open_sequences(), 1u);
}

TEST_F(ReplicatedClientTest, WithoutAReplicaStepsFailAfterTheBudgetAndALaterStepFindsOneAgain) {
  ReplicatedOptions options = Options();
  options.give_up_after = absl::Seconds(30);
  FakeClock clock;
  const auto client = Connect(options, &ReplicatedClient::ConnectIfReady, &clock);
  // Moves the time on until the answer is there.
  const auto run = [&](const TestStep& step, const ReplicatedSequence& of) {
    return clock.AdvanceUntil(client->Submit(StepOf(step), {&of}), absl::Milliseconds(20));
  };
  ReplicatedSequence sequence = *client->OpenSequence();
  Sequence calm = *calm_.OpenSequence();
  const auto calm_stream = *calm_.OpenStream();
  std::mt19937 random(10);
  const TestStep first = RandomStep(&random, 12), second = RandomStep(&random, 2);
  ASSERT_TRUE(client->Run(StepOf(first), {&sequence}).ok());
  for (FakePleServer& server : servers_) server.Stop();
  const absl::Status failed = run(second, sequence).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no replica in 30s"));
  EXPECT_EQ(client->counters().given_up, 1u);
  auto open = std::async(std::launch::async, [&client] { return client->OpenSequence().status(); });
  EXPECT_TRUE(absl::IsUnavailable(clock.AdvanceUntil(std::move(open), absl::Milliseconds(20))));
  EXPECT_GE(clock.Now() - absl::UnixEpoch(), absl::Minutes(1));
  for (FakePleServer& server : servers_) server.Restart();
  // What failed has moved nothing: the next step must say where it starts.
  EXPECT_EQ(ErrorReason(run(second, sequence).status()), Reason::kPredecessorFailed);
  TestStep again = second;
  again.position = sequence.position(kLayer);
  const absl::StatusOr<StepResult> result = run(again, sequence);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(calm_stream->Run(first.For(calm)).ok());
  EXPECT_EQ(result->output, calm_stream->Run(second.For(calm))->output);
}

TEST_F(ReplicatedClientTest, SwitchedOffAStepFailsWithItsReplica) {
  ReplicatedOptions options = Options();
  options.failover = Failover::kOff;
  const auto client = Connect(options);
  ReplicatedSequence sequence = *client->OpenSequence();
  std::mt19937 random(11);
  const TestStep step = RandomStep(&random, 2);
  ASSERT_TRUE(client->Run(StepOf(step), {&sequence}).ok());
  EXPECT_EQ(sequence.position(kLayer), 2u);
  Serving(*client).Forget();
  const absl::Status failed = client->Run(StepOf(step), {&sequence}).status();
  EXPECT_EQ(ErrorReason(failed), Reason::kSequenceUnknown) << failed;
  EXPECT_EQ(client->counters().rebuilt, 0u);
}

TEST_F(ReplicatedClientTest, AStepThatEveryReplicaIsLostWithFailsAndTheOthersGoOn) {
  // Every connection loses the third reply.
  const auto connector = [](const ClientOptions& to) -> absl::StatusOr<Client> {
    ModelInfo model;
    absl::StatusOr<std::shared_ptr<Connection>> connection = ConnectGrpc(to, &model);
    if (!connection.ok()) return connection.status();
    return Client::Over(std::make_shared<FaultyConnection>(
        *connection, std::vector<Kill>{{KillPoint::kReplyLost, 2}, {KillPoint::kReplyLost, 3}}));
  };
  ReplicatedOptions options = Options();
  options.max_losses_of_a_step = 2;
  const auto client = Connect(options, connector);
  ReplicatedSequence sequence = *client->OpenSequence();
  std::mt19937 random(12);
  std::vector<absl::Status> statuses;
  for (int i = 0; i < 12; ++i) {
    TestStep step = RandomStep(&random, 1);
    step.position = sequence.position(kLayer);
    statuses.push_back(client->Run(StepOf(step), {&sequence}).status());
  }
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  EXPECT_GE(client->counters().moves, 2u);
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
}

TEST_F(ReplicatedClientTest, WhatCannotBeSentElsewhereIsRefused) {
  const auto client = Connect(Options());
  ReplicatedSequence sequence = *client->OpenSequence();
  std::mt19937 random(13);
  const TestStep from = RandomStep(&random, 1);
  Step step = StepOf(from);
  EXPECT_TRUE(absl::IsInvalidArgument(client->Run(step, {}).status()));
  step.highway.region = RegionSpan{1, 0, 16};
  EXPECT_EQ(ErrorReason(client->Run(step, {&sequence}).status()), Reason::kNotSupported);
  Step of_ids = StepOf(from);
  of_ids.token_region = RegionSpan{1, 0, 4};
  EXPECT_EQ(ErrorReason(client->Run(of_ids, {&sequence}).status()), Reason::kNotSupported);
  ReplicatedSequence moved = std::move(sequence);
  EXPECT_TRUE(absl::IsFailedPrecondition(client->Run(StepOf(from), {&sequence}).status()));
  EXPECT_TRUE(client->Run(StepOf(from), {&moved}).ok());
  EXPECT_TRUE(client->Run(StepOf(from), {nullptr}).ok()) << "a throw-away carry";
}

TEST_F(ReplicatedClientTest, AStepWhoseSequenceIsReleasedMeanwhileIsAnswered) {
  const auto client = Connect(Options());
  std::mt19937 random(14);
  for (int i = 0; i < 200; ++i) {
    std::optional<ReplicatedSequence> sequence = *client->OpenSequence();
    const TestStep from = RandomStep(&random, 3);
    auto answer = client->Submit(StepOf(from), {&*sequence});
    sequence.reset();
    const absl::Status status = answer.get().status();
    EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) << status;
  }
  client->Drain();
  EXPECT_EQ(client->counters().moves, 0u);
}

TEST_F(ReplicatedClientTest, ASequenceThatExpiredAndFindsNoRoomFailsAloneAndIsBuiltOnceThereIs) {
  const auto client = Connect(Options());
  std::mt19937 random(15);
  ReplicatedSequence one = *client->OpenSequence(), other = *client->OpenSequence();
  const TestStep from = RandomStep(&random, 3);
  ASSERT_TRUE(client->Run(StepOf(from), {&one}).ok());
  ASSERT_TRUE(client->Run(StepOf(from), {&other}).ok());
  FakePleServer& server = Serving(*client);
  server.ExpireOldest();
  server.SetRoom(0);
  Step again = StepOf(from);
  again.segments[0].position = one.position(kLayer);
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = client->Run(again, {&one}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(client->Run(StepOf(from), {&other}).ok());
  }
  server.SetRoom(SIZE_MAX);
  const absl::StatusOr<StepResult> result = client->Run(again, {&one});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->segments[0].position, 6u);
  EXPECT_EQ(client->counters().moves, 0u);
  EXPECT_GE(client->counters().mended, 1u);
}

}  // namespace
}  // namespace pleiad::client::testing
