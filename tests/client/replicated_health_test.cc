// Servers that live and are not ready: still loading, or with a table that cannot be read; on a clock that the test
// moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/error_info.h"
#include "client/replicated_client.h"
#include "tests/client/replicated_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {
namespace {

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

}  // namespace
}  // namespace pleiad::client::testing
