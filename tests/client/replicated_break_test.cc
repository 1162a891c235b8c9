// What breaks while sequences move, or just before: servers killed inside calls, all of them gone, full, with another
// model or another token; and the client's own end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "client/internal/replica_set.h"
#include "client/replicated_client.h"
#include "tests/client/replicated_fixture.h"
#include "tests/client/twins.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad::client::testing {
namespace {

using pleiad::testing::FailsWith;
using pleiad::testing::IsOk;

// Beside the three replicas a fourth server that nothing disturbs.
class ReplicatedBreakTest : public ReplicatedClockTest {
 protected:
  ReplicatedBreakTest() : ReplicatedClockTest([](ReplicatedOptions& options) { options.snapshot_every = 4; }) {
    order_ = internal::RendezvousOrder(options_.addresses, options_.affinity_key);
  }

  // Blocks until the mover has found no replica to move to, and waits; how long.
  absl::Duration AwaitRetry() {
    const absl::Time now = clock_.Now();
    return clock_.AwaitDeadline(now + absl::Nanoseconds(1), now + options_.max_backoff) - now;
  }
  void AdvanceToRetry() { clock_.Advance(AwaitRetry()); }
  // Back, empty, and as good as any.
  void Return(size_t replica) {
    servers_[replica].Forget();
    servers_[replica].Restart();
    clock_.Advance(options_.max_backoff);
  }

  FakePleServer calm_server_;
  Client calm_ = *Client::Connect({.address = calm_server_.address()});
  std::vector<size_t> order_;
};

TEST_F(ReplicatedBreakTest, AServerKilledInASnapshotLosesNothing) {
  Twins twins(client_.get(), &calm_, 31);
  for (int i = 0; i < 8; ++i) {
    const size_t at = client_->replica();
    std::atomic<bool> killed = false;
    HangOf(at).SetHook(i % 2 == 0 ? Hang::Point::kBeforeSnapshot : Hang::Point::kAfterSnapshot, [&] {
      servers_[at].Stop();
      killed = true;
    });
    while (!killed) ASSERT_NO_FATAL_FAILURE(twins.Burst());
    ASSERT_NO_FATAL_FAILURE(twins.Burst());
    ASSERT_NE(client_->replica(), at);
    Return(at);
  }
  twins.ExpectEqualBlobs();
  EXPECT_EQ(client_->counters().moves, 8u);
  EXPECT_EQ(client_->counters().dropped, 0u);
}

TEST_F(ReplicatedBreakTest, AServerKilledWhileSequencesAreBuiltThereIsPassedOver) {
  Twins one(client_.get(), &calm_, 32), other(client_.get(), &calm_, 33);
  ASSERT_NO_FATAL_FAILURE(one.Burst());
  ASSERT_NO_FATAL_FAILURE(other.Burst());
  HangOf(order_[1]).SetHook(Hang::Point::kAfterOpen, [&] { servers_[order_[1]].Stop(); });
  servers_[first_].Stop();
  ASSERT_NO_FATAL_FAILURE(one.Burst());
  ASSERT_NO_FATAL_FAILURE(other.Burst());
  EXPECT_EQ(client_->replica(), order_[2]);
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
  one.ExpectEqualBlobs();
  other.ExpectEqualBlobs();
}

TEST_F(ReplicatedBreakTest, WhileAllServersAreDownStepsWaitAndAreAppliedOnce) {
  ReplicatedSequence other = *client_->OpenSequence();
  ASSERT_THAT(Run(other, 2), IsOk());
  for (FakePleServer& server : servers_) server.Stop();
  auto one_answer = Submit(*sequence_, 2), other_answer = Submit(other, 1);
  const absl::Time down = clock_.Now();
  while (clock_.Now() < down + options_.give_up_after / 2) AdvanceToRetry();
  EXPECT_EQ(client_->counters().failures, 0u);
  const absl::Duration retry = AwaitRetry();
  for (FakePleServer& server : servers_) {
    server.Forget();
    server.Restart();
  }
  clock_.Advance(retry);
  const absl::StatusOr<StepResult> one_result = one_answer.get(), other_result = other_answer.get();
  ASSERT_THAT(one_result, IsOk());
  ASSERT_THAT(other_result, IsOk());
  EXPECT_EQ(one_result->segments[0].position, 5u);
  EXPECT_EQ(other_result->segments[0].position, 3u);
  EXPECT_EQ(client_->counters().moves, 1u);
  EXPECT_EQ(client_->counters().given_up, 0u);
  Sequence calm = *calm_.OpenSequence();
  const auto stream = *calm_.OpenStream();
  ASSERT_THAT(stream->Run(steps_[0].For(calm)), IsOk());
  EXPECT_EQ(stream->Run(steps_[2].For(calm))->output, one_result->output);
  EXPECT_EQ(sequence_->Snapshot()->layers[0].aux, calm.Snapshot()->layers[0].aux);
}

TEST_F(ReplicatedBreakTest, AServerOfAnotherModelIsNotMovedTo) {
  servers_[order_[1]].SetModelId("other");
  servers_[first_].Stop();
  EXPECT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(client_->replica(), order_[2]);
  EXPECT_EQ(servers_[order_[1]].affinities().count("ForwardStream"), 0u);
}

TEST_F(ReplicatedBreakTest, AServerThatReturnsWithAnotherModelIsNotMovedBackTo) {
  servers_[first_].SetDraining();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  servers_[first_].WaitUntilEmpty();
  AwaitLookBack();
  ASSERT_EQ(client_->replica(), order_[1]);
  // Without a sequence whose opening would be refused.
  sequence_.reset();
  servers_[order_[1]].WaitUntilEmpty();
  servers_[first_].SetModelId("other");
  LookBack();
  EXPECT_EQ(client_->replica(), order_[1]);
  EXPECT_EQ(client_->counters().moves_back, 0u);
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
}

TEST_F(ReplicatedBreakTest, AServerStartedAnewWithAnotherModelIsLeft) {
  servers_[first_].SetModelId("other");
  absl::StatusOr<ReplicatedSequence> opened = client_->OpenSequence();
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(client_->replica(), order_[1]);
  EXPECT_EQ(servers_[first_].open_sequences(), 0u);
  // The sequences that were there are built on the next one too.
  servers_[order_[1]].SetModelId("other");
  ASSERT_THAT(Run(*sequence_, 2), IsOk());
  EXPECT_EQ(client_->replica(), order_[2]);
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 5u);
  EXPECT_THAT(client_->OpenSequence({.model_id = "mine"}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "another model"));
  EXPECT_EQ(client_->replica(), order_[2]) << "what the caller asks for is no reason to leave";
}

TEST_F(ReplicatedBreakTest, ATokenIsRotatedWhileSequencesMove) {
  const pleiad::testing::TempDir dir;
  ReplicatedOptions options = options_;
  options.token_file = dir / "token";
  const auto write = [&](const std::string& token) {
    const std::string fresh = dir / "fresh";
    std::ofstream(fresh) << token;
    ASSERT_EQ(::chmod(fresh.c_str(), 0600), 0);
    std::filesystem::rename(fresh, options.token_file);
  };
  write("old");
  for (FakePleServer& server : servers_) server.SetToken("old");
  client_ = *ReplicatedClient::Connect(options, &ReplicatedClient::ConnectIfReady, &clock_);
  sequence_.emplace(*client_->OpenSequence());
  ASSERT_THAT(Run(*sequence_, 3), IsOk());
  for (FakePleServer& server : servers_) server.SetToken("new");
  servers_[first_].Stop();
  auto answer = Submit(*sequence_, 2);
  while (client_->counters().failed_attempts < 6) AdvanceToRetry();
  const absl::Duration retry = AwaitRetry();
  servers_[first_].Forget();
  servers_[first_].Restart();
  write("new");
  clock_.Advance(retry);
  const absl::StatusOr<StepResult> result = answer.get();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->segments[0].position, 5u);
  EXPECT_EQ(client_->counters().moves, 1u);
  EXPECT_EQ(client_->counters().given_up, 0u);
}

// The client is destroyed while its mover builds sequences.
class ReplicatedEndTest : public ReplicatedBreakTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ReplicatedEndTest, InsideAMoveAnswersWhatWaitsAndLeavesNoSequenceBehind) {
  std::promise<void> building;
  HangOf(order_[1]).SetHook(Hang::Point::kAfterOpen, [&] {
    building.set_value();
    // Answered once the client ends.
    EXPECT_THAT(sequence_->Snapshot(), FailsWith(absl::StatusCode::kCancelled, "the client was closed"));
  });
  if (GetParam()) {
    servers_[first_].SetDraining();
    ASSERT_THAT(Run(*sequence_, 1), IsOk());
  } else {
    servers_[first_].Stop();
  }
  auto answer = Submit(*sequence_, 2);
  building.get_future().wait();
  client_.reset();
  const absl::Status status = answer.get().status();
  EXPECT_TRUE((GetParam() && status.ok()) || absl::IsCancelled(status)) << status;
  for (FakePleServer& server : servers_) {
    if (!GetParam() && &server == &servers_[first_]) continue;
    server.WaitUntilEmpty();
  }
}

INSTANTIATE_TEST_SUITE_P(Moves, ReplicatedEndTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Drain" : "Loss"; });

TEST_F(ReplicatedBreakTest, AServerWithoutRoomForAllIsPassedOver) {
  ReplicatedSequence other = *client_->OpenSequence();
  ASSERT_THAT(Run(other, 2), IsOk());
  servers_[order_[1]].SetRoom(1);
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  ASSERT_THAT(Run(other, 1), IsOk());
  EXPECT_EQ(client_->replica(), order_[2]);
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
  servers_[order_[1]].WaitUntilEmpty();
}

TEST_F(ReplicatedBreakTest, WhileNoServerHasRoomStepsWaitForOne) {
  servers_[order_[1]].SetRoom(0);
  servers_[order_[2]].SetRoom(0);
  servers_[first_].Stop();
  auto answer = Submit(*sequence_, 1);
  while (client_->counters().failed_attempts < 6) AdvanceToRetry();
  const absl::Duration retry = AwaitRetry();
  servers_[first_].Forget();
  servers_[first_].Restart();
  for (FakePleServer& server : servers_) server.SetRoom(1);
  clock_.Advance(retry);
  EXPECT_THAT(answer.get(), IsOk());
}

TEST_F(ReplicatedBreakTest, ADrainingServerServesUntilAnotherHasRoom) {
  servers_[order_[1]].SetRoom(0);
  servers_[order_[2]].SetRoom(0);
  servers_[first_].SetDraining();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  for (int i = 0; i < 4; ++i) {
    AdvanceToRetry();
    ASSERT_THAT(Run(*sequence_, 1), IsOk());
  }
  EXPECT_EQ(client_->replica(), first_);
  servers_[order_[2]].SetRoom(1);
  // Whichever of the two is tried first.
  while (client_->replica() == first_) {
    const absl::Time now = clock_.Now();
    clock_.Advance(clock_.AwaitDeadline(now + absl::Nanoseconds(1), absl::InfiniteFuture()) - now);
  }
  servers_[first_].WaitUntilEmpty();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(client_->counters().drain_moves, 1u);
  EXPECT_EQ(client_->counters().resent_steps, 0u);
}

TEST_F(ReplicatedBreakTest, ABetterServerWithoutRoomIsNotMovedBackTo) {
  servers_[first_].Stop();
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  Return(first_);
  servers_[first_].SetRoom(0);
  LookBack();
  EXPECT_EQ(client_->replica(), order_[1]);
  EXPECT_EQ(client_->counters().failed_attempts, 1u);
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  servers_[first_].SetRoom(1);
  LookBack();
  EXPECT_EQ(client_->replica(), first_);
  ASSERT_THAT(Run(*sequence_, 1), IsOk());
  EXPECT_EQ(sequence_->Snapshot()->layers[0].position, 6u);
}

}  // namespace
}  // namespace pleiad::client::testing
