// Servers that hang, retries, and moves back, on a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/replica_set.h"
#include "client/replicated_client.h"
#include "tests/client/fake_clock.h"
#include "tests/client/hanging_connection.h"
#include "tests/client/replicated_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {
namespace {

using pleiad::testing::FailsWith;
using pleiad::testing::IsOk;

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
  AwaitLookBack();
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
  HangOf(first_).SetHook(Hang::Point::kAfterRestore, [&] {
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
  LookBack();
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
  EXPECT_EQ(client_->replica(), second);

  servers_[first_].Forget();
  servers_[first_].Restart();
  LookBack();
  EXPECT_EQ(client_->replica(), first_);
  servers_[second].WaitUntilEmpty();
  EXPECT_EQ(client_->counters().moves_back, 1u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 5u);
  EXPECT_EQ(client_->counters().resent_steps, 1u) << "of the loss";
  // There is none before it.
  LookBack();
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
  LookBack();
  EXPECT_EQ(client_->replica(), second);
  EXPECT_EQ(client_->counters().moves_back, 1u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
}

TEST_F(ReplicatedClockTest, ClientsOfAServerThatIsBackReturnEachAtATimeOfItsOwn) {
  // Ranks of an engine: the seed is the same. All lost their server at one time.
  servers_[first_].Stop();
  std::map<std::string, absl::Time> looks;
  for (int rank = 0; looks.size() < 8; ++rank) {
    ReplicatedOptions options = options_;
    options.affinity_key = absl::StrCat("rank-", rank);
    if (internal::RendezvousOrder(options.addresses, options.affinity_key)[0] != first_) continue;
    FakeClock clock;
    const auto client = *ReplicatedClient::Connect(options, &ReplicatedClient::ConnectIfReady, &clock);
    ASSERT_NE(client->replica(), first_);
    const absl::Time now = clock.Now(), last = now + options.move_back_interval;
    looks[options.affinity_key] = clock.AwaitDeadline(now + options.move_back_interval / 2, last);
  }
  std::vector<absl::Time> times;
  for (const auto& [key, at] : looks) times.push_back(at);
  std::sort(times.begin(), times.end());
  EXPECT_EQ(std::adjacent_find(times.begin(), times.end()), times.end());
  // Which ranks they are depends on the ports; eight at random in 150 s lie closer once in ten million times.
  EXPECT_GE(times.back() - times.front(), options_.move_back_interval / 30);
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
