// What clients see of a server that is going away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "client/error_info.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/sessions.h"

namespace pleiad::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;

TEST(DrainingTest, StepsGoOnSequencesMoveAndTheServerEndsWhenTheLastOneIsReleased) {
  TempDir model;
  WriteCheckpoint({}, model.path());
  InProcessServer old_server(model.path(), [](ServerFlags& flags) { flags.batch_invariant = true; });
  InProcessServer new_server(model.path(), [](ServerFlags& flags) { flags.batch_invariant = true; });
  client::Client client = old_server.Connect(), new_client = new_server.Connect();
  std::mt19937 random(80);
  const Passage passage = RandomPassage(random, 40, client.model());
  client::Sequence sequence = *client.OpenSequence({.client_key = "k"}), control = *new_client.OpenSequence();
  const auto stream = *client.OpenStream(), new_stream = *new_client.OpenStream();
  auto result = stream->Run(StepOf(sequence, passage, 0, 10));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->draining);
  EXPECT_EQ(old_server.HealthOf(""), HealthCheckResponse::SERVING);
  const std::string before = VisibleState(old_server.stub(), static_cast<uint64_t>(sequence.id()));

  old_server.server().Terminate();
  EXPECT_EQ(old_server.HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(old_server.HealthOf("pleiad.v1.Ple"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(old_server.HealthOf("pleiad.live"), HealthCheckResponse::SERVING);
  const absl::Status refused = client.OpenSequence().status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(client::ErrorReason(refused), client::Reason::kDraining);
  EXPECT_EQ(VisibleState(old_server.stub(), static_cast<uint64_t>(sequence.id())), before);
  // A retry of an open that had succeeded is no new sequence.
  absl::StatusOr<client::Sequence> again = client.OpenSequence({.client_key = "k"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id(), sequence.id());
  EXPECT_FALSE(again->fresh());
  std::move(*again).Detach();

  result = stream->Run(StepOf(sequence, passage, 10, 10));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->draining);
  const absl::StatusOr<client::SequenceSnapshot> snapshot = sequence.Snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  absl::StatusOr<client::Sequence> moved =
      new_client.OpenSequence({.model_id = snapshot->model_id, .layers = snapshot->layers});
  ASSERT_TRUE(moved.ok()) << moved.status();
  const std::string whole = RunPassage(*new_stream, control, passage);
  const std::string tail = RunPassage(*new_stream, *moved, passage.Slice(20, 20));
  EXPECT_EQ(tail, whole.substr(whole.size() - tail.size()));
  EXPECT_TRUE(*sequence.Release());
  EXPECT_EQ(old_server.Wait(), kExitDrained);
}

}  // namespace
}  // namespace pleiad::testing
