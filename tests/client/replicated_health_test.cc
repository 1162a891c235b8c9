// Servers that live and are not ready: still loading, or with a table that cannot be read; on a clock that the test
// moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "client/error_info.h"
#include "client/replicated_client.h"
#include "core/base/mutex.h"
#include "tests/client/replicated_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {
namespace {

using pleiad::testing::FailsWith;
using pleiad::testing::IsOk;

constexpr char kPle[] = "pleiad.v1.Ple";

class ReplicatedHealthTest : public ReplicatedClockTest {
 protected:
  ReplicatedHealthTest() {
    for (FakePleServer& server : servers_) server.SetHealthy(kPle, true);
  }

  // A step that meets a row which cannot be read: the server is not ready from then on.
  void Damage(size_t replica) {
    servers_[replica].SetHealthy(kPle, false);
    servers_[replica].FailNextSteps(1);
    const absl::Status status = Run(*sequence_, 1);
    EXPECT_EQ(ErrorReason(status), Reason::kTableUnreadable) << status;
  }
  // Blocks until the mover has found no replica to move to, and waits; how long.
  absl::Duration AwaitRetry() {
    const absl::Time now = clock_.Now();
    return clock_.AwaitDeadline(now + options_.initial_backoff, now + options_.max_backoff) - now;
  }
};

TEST_F(ReplicatedHealthTest, AServerThatCannotReadItsTableIsLeft) {
  Damage(first_);
  servers_[first_].WaitUntilEmpty();
  AwaitLookBack();
  EXPECT_NE(client_->replica(), first_);
  EXPECT_EQ(client_->counters().drain_moves, 1u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(sequence_->position(kLayer), 4u);
}

TEST_F(ReplicatedHealthTest, AServerWhoseTableIsReadableAgainIsNotLeft) {
  for (size_t i = 0; i < servers_.size(); ++i) servers_[i].SetHealthy(kPle, i == first_);
  Damage(first_);
  // Each wait is one attempt at another replica, in vain.
  for (int i = 0; i < 3; ++i) clock_.Advance(AwaitRetry());
  EXPECT_EQ(client_->replica(), first_);
  EXPECT_GE(client_->counters().failed_attempts, 2u);
  // All are ready again: there is where to go, and no reason any more.
  const absl::Duration retry = AwaitRetry();
  for (FakePleServer& server : servers_) server.SetHealthy(kPle, true);
  clock_.Advance(retry);
  AwaitLookBack();
  EXPECT_EQ(client_->replica(), first_);
  EXPECT_EQ(client_->counters().drain_moves, 0u);
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
}

// Of each address, when it was tried.
using Attempts = std::map<std::string, std::vector<absl::Time>>;

// A connector that notes its calls beside `connector`'s work.
ReplicatedClient::Connector Noting(FakeClock* clock, Mutex* mutex, Attempts* attempts) {
  return [=](const ClientOptions& to) {
    {
      MutexLock lock(mutex);
      (*attempts)[to.address].push_back(clock->Now());
    }
    return ReplicatedClient::ConnectIfReady(to);
  };
}

// From the second attempt on; each wait is from half of `most` to all of it, which doubles from `initial` to `max`.
void ExpectBackoff(const std::vector<absl::Time>& attempts, absl::Duration initial, absl::Duration max) {
  absl::Duration most = initial;
  for (size_t i = 1; i < attempts.size(); ++i) {
    EXPECT_GE(attempts[i] - attempts[i - 1], most / 2) << i;
    EXPECT_LE(attempts[i] - attempts[i - 1], most) << i;
    most = std::min(2 * most, max);
  }
}

TEST_F(ReplicatedHealthTest, ServersThatLoadAreAskedAtTimesThatDoubleUntilOneIsReady) {
  for (FakePleServer& server : servers_) server.SetHealthy(kPle, false);
  FakeClock clock;
  Mutex mutex;
  Attempts attempts;
  ReplicatedOptions options = options_;
  options.give_up_after = absl::Minutes(10);
  auto connecting = std::async(std::launch::async, [&] {
    return ReplicatedClient::Connect(options, Noting(&clock, &mutex, &attempts), &clock);
  });
  const auto wait = [&] {
    const absl::Time at = clock.AwaitDeadline(clock.Now() + absl::Nanoseconds(1), absl::InfiniteFuture());
    return at - clock.Now();
  };
  while (clock.Now() < absl::UnixEpoch() + absl::Minutes(1)) clock.Advance(wait());
  const absl::Duration last = wait();
  {
    MutexLock lock(&mutex);
    ASSERT_EQ(attempts.size(), servers_.size());
    for (const auto& [address, times] : attempts) {
      // A minute has from 30 to 60 waits of two seconds at most, and those before.
      EXPECT_GE(times.size(), 33u) << address;
      EXPECT_LE(times.size(), 70u) << address;
      ExpectBackoff(times, options.initial_backoff, options.max_backoff);
    }
    ASSERT_NE(attempts.begin()->second, attempts.rbegin()->second) << "each at times of its own";
  }
  for (FakePleServer& server : servers_) server.SetHealthy(kPle, true);
  clock.Advance(last);
  const auto client = connecting.get();
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT((*client)->OpenSequence(), IsOk());
}

TEST_F(ReplicatedHealthTest, ServersThatStayLoadingFailAConnectAtItsTimeWithWhy) {
  for (FakePleServer& server : servers_) server.SetHealthy(kPle, false);
  FakeClock clock;
  auto connecting = std::async(std::launch::async, [&] {
    return ReplicatedClient::Connect(options_, &ReplicatedClient::ConnectIfReady, &clock).status();
  });
  while (clock.Now() < absl::UnixEpoch() + options_.give_up_after) {
    clock.Advance(clock.AwaitDeadline(clock.Now() + absl::Nanoseconds(1), absl::InfiniteFuture()) - clock.Now());
  }
  EXPECT_EQ(clock.Now(), absl::UnixEpoch() + options_.give_up_after);
  EXPECT_THAT(connecting.get(), FailsWith(absl::StatusCode::kUnavailable, "is not ready to serve"));
}

}  // namespace
}  // namespace pleiad::client::testing
