#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "client/error_info.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/mock_connection.h"
#include "tests/client/test_steps.h"

namespace pleiad::client::testing {
namespace {

using ::testing::_;
using ::testing::NiceMock;
using ::testing::Return;

std::shared_ptr<NiceMock<MockConnection>> MockWithOneSequence() {
  auto connection = std::make_shared<NiceMock<MockConnection>>();
  ON_CALL(*connection, GetModel).WillByDefault(Return(ModelInfo{}));
  ON_CALL(*connection, Open).WillByDefault(Return(OpenResult{SequenceId{5}, false}));
  return connection;
}

TEST(ClientTest, AHandleReleasesItsSequenceOnceWhenItIsDestroyed) {
  auto connection = MockWithOneSequence();
  EXPECT_CALL(*connection, ReleaseLater(SequenceId{5}, 0)).Times(1);
  Client client = *Client::Over(connection);
  Sequence first = *client.OpenSequence();
  Sequence second = std::move(first);
}

TEST(ClientTest, OfALookupsContextOnlyWhatCountsIsSent) {
  auto connection = std::make_shared<NiceMock<MockConnection>>();
  ModelInfo model;
  model.ngram_size = 3;
  ON_CALL(*connection, GetModel).WillByDefault(Return(model));
  LookupQuery sent;
  ON_CALL(*connection, Lookup).WillByDefault([&sent](const LookupQuery& query) {
    sent = query;
    return LookupResult();
  });
  Client client = *Client::Over(connection);
  std::vector<uint32_t> history(1'000'000, 5);
  history.push_back(6);
  const LookupQuery query{.segments = {{1, history}, {1, {3, 4}}, {2, {9}}, {1, {}}}, .token_ids = {1, 2, 3, 4, 5}};
  EXPECT_TRUE(client.Lookup(query).ok());
  std::vector<std::vector<uint32_t>> contexts;
  for (const LookupSegment& segment : sent.segments) contexts.push_back(segment.context_ids);
  EXPECT_EQ(contexts, (std::vector<std::vector<uint32_t>>{{5, 6}, {3, 4}, {9}, {}}));
  EXPECT_EQ(sent.segments[2].num_tokens, 2u);
  EXPECT_EQ(sent.token_ids, query.token_ids);
}

TEST(ClientTest, AReleasedOrDetachedHandleReleasesNothing) {
  auto connection = MockWithOneSequence();
  EXPECT_CALL(*connection, ReleaseLater(_, _)).Times(0);
  EXPECT_CALL(*connection, Release(SequenceId{5}, 0)).WillOnce(Return(true));
  Client client = *Client::Over(connection);
  Sequence released = *client.OpenSequence();
  EXPECT_TRUE(*released.Release());
  EXPECT_TRUE(absl::IsFailedPrecondition(released.Release().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(released.Get().status()));
  Sequence detached = *client.OpenSequence();
  EXPECT_EQ(std::move(detached).Detach(), SequenceId{5});
}

TEST(ClientTest, AFailedReleaseKeepsTheHandle) {
  auto connection = MockWithOneSequence();
  EXPECT_CALL(*connection, Release).WillOnce(Return(absl::UnavailableError("gone")));
  EXPECT_CALL(*connection, ReleaseLater(SequenceId{5}, _)).Times(1);
  Client client = *Client::Over(connection);
  Sequence sequence = *client.OpenSequence();
  EXPECT_FALSE(sequence.Release().ok());
}

TEST(ClientTest, AssigningToAHandleReleasesWhatItHeld) {
  auto connection = MockWithOneSequence();
  EXPECT_CALL(*connection, Open)
      .WillOnce(Return(OpenResult{SequenceId{5}, false}))
      .WillOnce(Return(OpenResult{SequenceId{6}, false}));
  ::testing::InSequence order;
  EXPECT_CALL(*connection, ReleaseLater(SequenceId{5}, _)).Times(1);
  EXPECT_CALL(*connection, ReleaseLater(SequenceId{6}, _)).Times(1);
  Client client = *Client::Over(connection);
  Sequence sequence = *client.OpenSequence();
  sequence = *client.OpenSequence();
}

TEST(ClientTest, ADestroyedHandleIsReleasedOnTheServer) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  {
    Sequence sequence = *client.OpenSequence();
    EXPECT_EQ(server.open_sequences(), 1u);
  }
  server.WaitUntilEmpty();
}

TEST(ClientTest, TheModelIsWhatTheServerServes) {
  FakePleServer server({.layers = {1, 5}, .channels = 6});
  Client client = *Client::Connect({.address = server.address()});
  EXPECT_EQ(client.model().model_id, "toy");
  EXPECT_EQ(client.model().channels, 6u);
  EXPECT_EQ(client.model().heads(), kHeads);
  ASSERT_EQ(client.model().layers.size(), 2u);
  EXPECT_EQ(client.model().layers[1].layer_index, 5u);
  EXPECT_EQ(client.model().rollback_tokens, 8u);
  EXPECT_FALSE(client.model().image_token_id.has_value());
}

TEST(ClientTest, AnswersBeyondTheDefaultLimitOfGrpcAreReceived) {
  FakePleServer server({.channels = 20000});
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(1);
  const TestStep step = RandomStep(&rng, 60, 20000);  // 4.8 MB
  absl::StatusOr<StepResult> result = stream->Run(step.For(sequence));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.size(), step.highway.size() * 4);
}

TEST(ClientTest, ErrorsOfUnaryCallsCarryTheServersDetails) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  absl::Status status = client.Attach(SequenceId{77}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(ErrorReason(status), Reason::kSequenceUnknown);
  OpenOptions options;
  options.layers.push_back({.layer_index = 1, .aux = "short"});
  status = client.OpenSequence(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(ErrorReason(status), Reason::kAuxMalformed);
}

TEST(ClientTest, AnUnreachablePositionIsReportedWithTheNumbers) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(2);
  ASSERT_TRUE(stream->Run(RandomStep(&rng, 20).For(sequence)).ok());
  TestStep step = RandomStep(&rng, 1);
  step.position = 5;
  const absl::Status status = stream->Run(step.For(sequence)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  ASSERT_EQ(ErrorDetails(status).size(), 1u);
  const ErrorDetail detail = ErrorDetails(status)[0];
  EXPECT_EQ(detail.reason, Reason::kPositionUnreachable);
  EXPECT_EQ(detail.segment, 0u);
  EXPECT_EQ(detail.position, 20u);
  EXPECT_EQ(detail.low, 12u);
}

TEST(ClientTest, AStatusWithoutDetailsHasNoReason) {
  EXPECT_TRUE(ErrorDetails(absl::UnavailableError("x")).empty());
  EXPECT_EQ(ErrorReason(absl::OkStatus()), Reason::kUnspecified);
  EXPECT_EQ(ReasonName(Reason::kEpochOld), "EPOCH_OLD");
}

TEST(ClientTest, ARestoredSequenceGoesOnWhereTheBlobStands) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence original = *client.OpenSequence();
  std::mt19937 rng(3);
  const TestStep head = RandomStep(&rng, 20), tail = RandomStep(&rng, 4);
  ASSERT_TRUE(stream->Run(head.For(original)).ok());
  const SequenceSnapshot snapshot = *original.Snapshot();
  const std::string expected = stream->Run(tail.For(original))->output;
  Sequence forked = *client.OpenSequence({.layers = snapshot.layers});
  EXPECT_EQ(forked.position(1), 20u);
  EXPECT_EQ(stream->Run(tail.For(forked))->output, expected);
  ASSERT_TRUE(original.Restore(snapshot).ok());
  EXPECT_EQ(stream->Run(tail.For(original))->output, expected);
}

TEST(ClientTest, AClientKeyFindsItsLiveSequenceAndWhereItStands) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence first = *client.OpenSequence({.client_key = "k"});
  std::mt19937 rng(4);
  const TestStep step = RandomStep(&rng, 3);
  ASSERT_TRUE(stream->Run(step.For(first)).ok());
  std::unique_ptr<StepStream> other = *client.OpenStream();
  Sequence again = *client.OpenSequence({.client_key = "k"});
  EXPECT_FALSE(again.fresh());
  EXPECT_EQ(again.id(), first.id());
  ASSERT_TRUE(other->Run(step.For(again)).ok());
  EXPECT_EQ(again.Get()->layers[0].position, 6u);
  // The first owner is the old one now.
  EXPECT_EQ(ErrorReason(stream->Run(step.For(first)).status()), Reason::kEpochOld);
  EXPECT_EQ(ErrorReason(first.Snapshot().status()), Reason::kEpochOld);
}

TEST(ClientTest, HealthIsAskedByName) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  EXPECT_EQ(*client.Health(), HealthState::kServing);
  server.SetHealthy("pleiad.v1.Ple", false);
  EXPECT_EQ(*client.Health("pleiad.v1.Ple"), HealthState::kNotServing);
  EXPECT_TRUE(absl::IsNotFound(client.Health("no.such").status()));
}

TEST(ClientTest, BadOptionsAreRefusedByName) {
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Connect({.address = ""}).status()));
  EXPECT_THAT(Client::Connect({.rpc_timeout = absl::ZeroDuration()}).status().message(),
              ::testing::HasSubstr("rpc_timeout"));
  EXPECT_THAT(StreamOptions{.initial_backoff = absl::ZeroDuration()}.Validate().message(),
              ::testing::HasSubstr("initial_backoff"));
}

TEST(ClientTest, ConnectingToNobodyFailsWithinItsTimeout) {
  const absl::Status status =
      Client::Connect({.address = "unix:/nonexistent/socket", .connect_timeout = absl::Milliseconds(30)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
}

}  // namespace
}  // namespace pleiad::client::testing
