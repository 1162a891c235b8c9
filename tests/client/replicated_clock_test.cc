// Servers that hang, retries, and moves back, on a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <future>
#include <map>
#include <random>
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

using pleiad::testing::FailsWith;
using pleiad::testing::IsOk;

constexpr uint32_t kLayer = 1;

// Three replicas, whose connections can hang, a client of them and a sequence of three tokens.
class ReplicatedClockTest : public ::testing::Test {
 protected:
  explicit ReplicatedClockTest(const std::function<void(ReplicatedOptions&)>& change = [](ReplicatedOptions&) {}) {
    for (FakePleServer& server : servers_) {
      options_.addresses.push_back(server.address());
      hangs_[server.address()] = std::make_shared<Hang>();
    }
    options_.affinity_key = "rank-3";
    options_.reconnect_timeout = absl::ZeroDuration();
    options_.connect_timeout = options_.rpc_timeout = absl::Minutes(5);
    options_.give_up_after = absl::Seconds(30);
    options_.stall_timeout = absl::Hours(1);
    change(options_);
    const auto connector = [this](const ClientOptions& to) -> absl::StatusOr<Client> {
      const auto health = CheckHealth(to, "pleiad.v1.Ple");
      if (absl::IsUnavailable(health.status())) return health.status();
      ModelInfo model;
      absl::StatusOr<std::shared_ptr<Connection>> connection = ConnectGrpc(to, &model);
      if (!connection.ok()) return connection.status();
      return Client::Over(std::make_shared<HangingConnection>(*connection, hangs_.at(to.address)));
    };
    client_ = *ReplicatedClient::Connect(options_, connector, &clock_);
    sequence_.emplace(*client_->OpenSequence());
    EXPECT_THAT(Run(*sequence_, 3), IsOk());
    first_ = client_->replica();
  }

  // Random tokens, from where the sequence stands.
  std::future<absl::StatusOr<StepResult>> Submit(ReplicatedSequence& sequence, uint32_t tokens) {
    TestStep& from = steps_.emplace_back(RandomStep(&random_, tokens));
    Step step;
    step.segments.push_back({nullptr, tokens, /*fresh=*/false, sequence.position(kLayer)});
    step.token_ids = from.tokens;
    step.highway.data =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from.highway.data()), from.highway.size() * 4);
    return client_->Submit(std::move(step), {&sequence});
  }
  absl::Status Run(ReplicatedSequence& sequence, uint32_t tokens) { return Submit(sequence, tokens).get().status(); }
  Hang& HangOf(size_t replica) { return *hangs_.at(options_.addresses[replica]); }

  std::array<FakePleServer, 3> servers_;
  std::map<std::string, std::shared_ptr<Hang>> hangs_;
  ReplicatedOptions options_;
  FakeClock clock_;
  std::mt19937 random_{3};
  std::deque<TestStep> steps_;
  std::unique_ptr<ReplicatedClient> client_;
  std::optional<ReplicatedSequence> sequence_;
  size_t first_ = 0;
};

TEST_F(ReplicatedClockTest, StepsThatAreNotAnsweredAndNoHealthSayThatAServerIsGone) {
  HangOf(first_).Begin(Hang::Health::kToo);
  auto answer = Submit(*sequence_, 2);
  HangOf(first_).AwaitHeld();
  clock_.Advance(options_.stall_timeout - absl::Seconds(1));
  EXPECT_EQ(client_->counters().moves, 0u);
  clock_.Advance(absl::Seconds(1));
  const absl::StatusOr<StepResult> result = answer.get();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->segments[0].position, 5u) << "applied once";
  EXPECT_NE(client_->replica(), first_);
  EXPECT_EQ(client_->counters().moves, 1u);
}

TEST_F(ReplicatedClockTest, AServerThatIsSlowAndHealthyIsWaitedFor) {
  HangOf(first_).Begin(Hang::Health::kAnswers);
  auto answer = Submit(*sequence_, 2);
  HangOf(first_).AwaitHeld();
  clock_.Advance(options_.stall_timeout);
  // It has asked, and waits anew.
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  HangOf(first_).End();
  EXPECT_THAT(answer.get(), IsOk());
  EXPECT_EQ(client_->replica(), first_);
  EXPECT_EQ(client_->counters().moves, 0u);
}

TEST_F(ReplicatedClockTest, CallsThatAreNotAnsweredLeaveAHungServerWithoutAnyStep) {
  HangOf(first_).Begin(Hang::Health::kToo);
  const absl::StatusOr<SequenceSnapshot> snapshot = sequence_->Snapshot();
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->layers[0].position, 3u);
  const size_t second = client_->replica();
  EXPECT_NE(second, first_);
  HangOf(second).Begin(Hang::Health::kToo);
  EXPECT_THAT(client_->OpenSequence(), IsOk());
  EXPECT_NE(client_->replica(), second);
  EXPECT_EQ(client_->counters().moves, 2u);
}

TEST_F(ReplicatedClockTest, ACallThatAHealthyServerDoesNotAnswerFailsAlone) {
  HangOf(first_).Begin(Hang::Health::kAnswers);
  EXPECT_THAT(sequence_->Snapshot(), FailsWith(absl::StatusCode::kDeadlineExceeded, "no answer"));
  EXPECT_THAT(client_->OpenSequence(), FailsWith(absl::StatusCode::kDeadlineExceeded, "no answer"));
  HangOf(first_).End();
  EXPECT_THAT(sequence_->Snapshot(), IsOk());
  EXPECT_EQ(client_->replica(), first_);
  EXPECT_EQ(client_->counters().moves, 0u);
}

// The server that has restored the sequence dies before the call returns, and the sequence is built elsewhere from what
// this side knew of it until then.
TEST_F(ReplicatedClockTest, ARestoreThatAMoveOverlapsIsDoneWhereTheSequenceIsThen) {
  const absl::StatusOr<SequenceSnapshot> at_three = sequence_->Snapshot();
  ASSERT_THAT(at_three, IsOk());
  ASSERT_THAT(Run(*sequence_, 4), IsOk());
  ReplicatedSequence other = *client_->OpenSequence();
  HangOf(first_).SetAfterRestore([&] {
    servers_[first_].Stop();
    EXPECT_THAT(Run(other, 1), IsOk()) << "on the next replica";
  });
  EXPECT_THAT(sequence_->Restore(*at_three), IsOk());
  EXPECT_EQ(client_->counters().moves, 1u);
  const absl::StatusOr<SequenceSnapshot> now = sequence_->Snapshot();
  ASSERT_THAT(now, IsOk());
  EXPECT_EQ(now->layers[0].position, 3u);
  EXPECT_EQ(now->layers[0].aux, at_three->layers[0].aux);
  EXPECT_EQ(sequence_->position(kLayer), 3u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
}

TEST_F(ReplicatedClockTest, ClientsReturnToTheFirstServerOfTheirKeyOnceItIsBack) {
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  const size_t second = client_->replica();
  ASSERT_NE(second, first_);
  // Still gone.
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  clock_.Advance(options_.move_back_interval);
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
  EXPECT_EQ(client_->replica(), second);

  servers_[first_].Forget();
  servers_[first_].Restart();
  clock_.Advance(options_.move_back_interval);
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  EXPECT_EQ(client_->replica(), first_);
  servers_[second].WaitUntilEmpty();
  EXPECT_EQ(client_->counters().moves_back, 1u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 5u);
  EXPECT_EQ(client_->counters().resent_steps, 1u) << "of the loss";
  // There is none before it.
  clock_.Advance(options_.move_back_interval);
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  EXPECT_EQ(client_->counters().moves_back, 1u);
}

TEST_F(ReplicatedClockTest, AServerThatIsBackIsFoundBehindOneThatStaysAway) {
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  const size_t second = client_->replica();
  servers_[second].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  ASSERT_NE(client_->replica(), second);
  ASSERT_NE(client_->replica(), first_);
  servers_[second].Forget();
  servers_[second].Restart();
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  clock_.Advance(options_.move_back_interval);
  clock_.AwaitDeadline(clock_.Now() + options_.move_back_interval);
  EXPECT_EQ(client_->replica(), second);
  EXPECT_EQ(client_->counters().moves_back, 1u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
}

class ReplicatedBudgetTest : public ReplicatedClockTest {
 protected:
  ReplicatedBudgetTest()
      : ReplicatedClockTest([](ReplicatedOptions& options) {
          options.retry_budget = 1;
          options.retries_per_second = 0.1;
          options.move_back_interval = absl::ZeroDuration();
        }) {}
};

TEST_F(ReplicatedBudgetTest, AMoveWaitsForTheBudget) {
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  servers_[first_].Restart();
  servers_[client_->replica()].Stop();
  auto answer = Submit(*sequence_, 1);
  clock_.AwaitDeadline(clock_.Now() + absl::Seconds(10) + absl::Nanoseconds(1));
  EXPECT_EQ(client_->counters().moves, 1u);
  clock_.Advance(absl::Seconds(10) + absl::Nanoseconds(1));
  EXPECT_THAT(answer.get(), IsOk());
  EXPECT_EQ(client_->counters().moves, 2u);
  EXPECT_EQ(client_->counters().last_move, absl::Seconds(10) + absl::Nanoseconds(1));
}

TEST_F(ReplicatedBudgetTest, WithoutAnIntervalNothingIsMovedBack) {
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  const size_t second = client_->replica();
  servers_[first_].Restart();
  clock_.Advance(absl::Hours(24));
  clock_.AwaitDeadline(clock_.Now() + options_.stall_timeout);
  EXPECT_EQ(client_->replica(), second);
}

}  // namespace
}  // namespace pleiad::client::testing
