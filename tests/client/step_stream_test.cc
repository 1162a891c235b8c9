#include "client/step_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/error_info.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/faulty_connection.h"
#include "tests/client/test_steps.h"

namespace pleiad::client::testing {
namespace {

constexpr uint32_t kRollback = 8;

std::shared_ptr<Connection> ConnectTo(const FakePleServer& server) {
  ModelInfo model;
  return *ConnectGrpc({.address = server.address()}, &model);
}

// Short and long steps, some from a position in reach; what a client with a model in its hands might do.
std::vector<TestStep> RandomProgram(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TestStep> program;
  uint64_t position = 0, low = 0;
  const uint32_t lengths[] = {1, 1, 1, 2, 3, 5, 8, 9, 12, 20};
  for (int i = 0; i < 24; ++i) {
    TestStep step = RandomStep(&rng, lengths[rng() % 10]);
    if (rng() % 4 == 0) step.position = low + rng() % (position - low + 1);
    if (rng() % 12 == 0) {
      step.fresh = true;
      step.position.reset();
      position = low = 0;
    }
    if (step.position.has_value()) position = *step.position;
    position += step.tokens.size();
    if (position > kRollback) low = std::max(low, position - kRollback);
    program.push_back(std::move(step));
  }
  return program;
}

struct Outcome {
  std::vector<std::string> outputs;
  std::string aux;
};

absl::Span<const std::byte> Bytes(const std::vector<float>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * 4);
}

// Submits the whole program at once. Some steps share the ownership of their highway, which the test then lets go of,
// and some say where their output goes, or take it in pieces.
Outcome RunProgram(Client* client, const Sequence& sequence, const std::vector<TestStep>& program) {
  std::unique_ptr<StepStream> stream =
      *client->OpenStream({.initial_backoff = absl::Nanoseconds(1), .max_backoff = absl::Nanoseconds(1)});
  std::vector<std::future<absl::StatusOr<StepResult>>> futures;
  std::vector<std::string> places(program.size());
  for (size_t i = 0; i < program.size(); ++i) {
    Step step = program[i].For(sequence);
    if (i % 2 == 0) {
      auto owner = std::make_shared<const std::vector<float>>(program[i].highway);
      step.highway.data = Bytes(*owner);
      step.highway.owner = std::move(owner);
    }
    step.output_pieces = i % 3 == 1;
    if (i % 3 == 0) {
      places[i].resize(step.highway.data.size());
      step.output = absl::MakeSpan(reinterpret_cast<std::byte*>(places[i].data()), places[i].size());
    }
    futures.push_back(stream->Submit(std::move(step)));
  }
  Outcome outcome;
  for (size_t i = 0; i < program.size(); ++i) {
    absl::StatusOr<StepResult> result = futures[i].get();
    EXPECT_TRUE(result.ok()) << result.status();
    std::string output;
    if (result.ok()) {
      EXPECT_EQ(result->output.empty(), i % 3 != 2);
      EXPECT_EQ(result->output_pieces.pieces.empty(), i % 3 != 1);
      output = i % 3 == 0 ? places[i] : result->output;
      for (const auto& piece : result->output_pieces.pieces) {
        output.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }
    }
    outcome.outputs.push_back(output);
  }
  return outcome;
}

class AppliedOnce : public ::testing::TestWithParam<uint32_t> {};

TEST_P(AppliedOnce, AStreamKilledAtScriptedPointsGivesWhatAnUndisturbedOneGives) {
  FakePleServer server;
  std::shared_ptr<Connection> direct = ConnectTo(server);
  const std::vector<TestStep> program = RandomProgram(GetParam());

  Client plain = *Client::Over(direct);
  Sequence undisturbed = *plain.OpenSequence();
  Outcome expected = RunProgram(&plain, undisturbed, program);
  expected.aux = undisturbed.Snapshot()->layers[0].aux;

  std::mt19937 rng(GetParam() + 1000);
  std::vector<Kill> kills;
  for (int i = 0; i < 4; ++i) kills.push_back({static_cast<KillPoint>(rng() % 4), rng() % program.size()});
  auto faulty = std::make_shared<FaultyConnection>(direct, kills);
  Client client = *Client::Over(faulty);
  Sequence sequence = *client.OpenSequence();
  Outcome seen = RunProgram(&client, sequence, program);
  seen.aux = sequence.Snapshot()->layers[0].aux;
  EXPECT_GT(faulty->kills_done(), 0u);
  EXPECT_EQ(seen.outputs, expected.outputs);
  EXPECT_EQ(seen.aux, expected.aux);
  EXPECT_EQ(sequence.Get()->layers[0].position, undisturbed.Get()->layers[0].position);

  // What still lay in the old connections arrives now.
  std::unique_ptr<StepConnection> old = direct->OpenStream();
  for (LateCopy& copy : faulty->late_copies()) {
    copy.step.highway.data =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(copy.highway.data()), copy.highway.size());
    ASSERT_TRUE(old->Write(copy.step));
    std::optional<WireReply> reply = old->Read();
    ASSERT_TRUE(reply.has_value());
    EXPECT_TRUE(absl::IsAborted(reply->result.status())) << reply->result.status();
    EXPECT_EQ(ErrorReason(reply->result.status()), Reason::kEpochOld);
  }
  EXPECT_EQ(sequence.Snapshot()->layers[0].aux, expected.aux);
}

INSTANTIATE_TEST_SUITE_P(FiftySeeds, AppliedOnce, ::testing::Range(0u, 50u));

// The negative: without the position a step that had been applied applies a second time.
TEST(StepStreamTest, AResentStepWithoutItsPositionWouldApplyTwice) {
  FakePleServer server;
  std::shared_ptr<Connection> connection = ConnectTo(server);
  Client client = *Client::Over(connection);
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(1);
  const TestStep step = RandomStep(&rng, 3);
  const WireStep once{.segments = {{.sequence = sequence.id(), .num_tokens = 3}},
                      .token_ids = step.tokens,
                      .highway = step.For(sequence).highway};
  const std::string first = connection->Forward(once)->output;
  EXPECT_NE(connection->Forward(once)->output, first);
  EXPECT_EQ(sequence.Get()->layers[0].position, 6u);
  WireStep placed = once;
  placed.segments[0].position = 0;
  EXPECT_EQ(connection->Forward(placed)->output, first);
  EXPECT_EQ(sequence.Get()->layers[0].position, 3u);
}

TEST(StepStreamTest, AcceptingAnyPrefixOfADraftEqualsPlainDecoding) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  std::mt19937 rng(2);
  const TestStep prompt = RandomStep(&rng, 20);
  const TestStep text = RandomStep(&rng, 12);  // what is accepted in the end
  for (uint32_t accepted = 0; accepted <= 5; ++accepted) {
    Sequence plain = *client.OpenSequence(), draft = *client.OpenSequence();
    ASSERT_TRUE(stream->Run(prompt.For(plain)).ok());
    const std::string expected = stream->Run(text.For(plain))->output;
    ASSERT_TRUE(stream->Run(prompt.For(draft)).ok());
    TestStep proposal = RandomStep(&rng, 5);
    std::copy_n(text.tokens.begin(), accepted, proposal.tokens.begin());
    std::copy_n(text.highway.begin(), accepted * 4, proposal.highway.begin());
    const std::string head = stream->Run(proposal.For(draft))->output.substr(0, accepted * 16);
    TestStep rest;
    rest.position = 20 + accepted;
    rest.tokens.assign(text.tokens.begin() + accepted, text.tokens.end());
    rest.highway.assign(text.highway.begin() + accepted * 4, text.highway.end());
    EXPECT_EQ(head + stream->Run(rest.For(draft))->output, expected) << accepted;
    EXPECT_EQ(draft.Snapshot()->layers[0].aux, plain.Snapshot()->layers[0].aux) << accepted;
  }
}

TEST(StepStreamTest, AFailedStepLeavesTheStreamAndOtherSequencesAlone) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence first = *client.OpenSequence(), second = *client.OpenSequence();
  std::mt19937 rng(3);
  TestStep bad = RandomStep(&rng, 2);
  bad.tokens[1] = 1000;
  absl::StatusOr<StepResult> refused = stream->Run(bad.For(first));
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_EQ(ErrorReason(refused.status()), Reason::kTokenOutOfVocabulary);
  EXPECT_TRUE(stream->Run(RandomStep(&rng, 2).For(second)).ok());
  TestStep again = RandomStep(&rng, 2);
  EXPECT_EQ(ErrorReason(stream->Run(again.For(first)).status()), Reason::kPredecessorFailed);
  again.position = first.position(1);
  EXPECT_TRUE(stream->Run(again.For(first)).ok());
}

TEST(StepStreamTest, AnOutputThatDoesNotFitIsRefusedAndAFailedStepWritesNone) {
  FakePleServer server;
  Client client = *Client::Over(ConnectTo(server));
  Sequence sequence = *client.OpenSequence();
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  std::mt19937 rng(6);
  const TestStep test = RandomStep(&rng, 3);
  std::string place(3 * 4 * 4 + 1, 'x');
  const auto run = [&](size_t size) {
    Step step = test.For(sequence);
    step.output = absl::MakeSpan(reinterpret_cast<std::byte*>(place.data()), size);
    return stream->Run(std::move(step));
  };
  for (const size_t size : {size_t{1}, place.size() - 2, place.size()}) {
    const absl::Status refused = run(size).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    ASSERT_EQ(ErrorDetails(refused).size(), 1u);
    EXPECT_EQ(ErrorDetails(refused)[0].reason, Reason::kSizeMismatch);
  }
  sequence = *client.OpenSequence();
  server.FailNextSteps(1);
  EXPECT_TRUE(absl::IsDataLoss(run(place.size() - 1).status()));
  EXPECT_EQ(place, std::string(place.size(), 'x'));
  sequence = *client.OpenSequence();
  EXPECT_TRUE(run(place.size() - 1).ok());
  EXPECT_NE(place.substr(0, 8), "xxxxxxxx");
  EXPECT_EQ(place.back(), 'x');
}

TEST(StepStreamTest, TheOwnerOfAHighwayIsLetGoOnceItIsSent) {
  FakePleServer server;
  Client client = *Client::Over(ConnectTo(server));
  Sequence sequence = *client.OpenSequence();
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  std::mt19937 rng(6);
  const TestStep test = RandomStep(&rng, 60);
  std::promise<void> gone;
  Step step = test.For(sequence);
  step.highway.owner = std::shared_ptr<const void>(&test, [&gone](const void*) { gone.set_value(); });
  EXPECT_TRUE(stream->Run(std::move(step)).ok());
  gone.get_future().wait();
}

TEST(StepStreamTest, AStepMayBeSubmittedInsideACallback) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(4);
  const TestStep step = RandomStep(&rng, 1);
  int left = 100;
  std::promise<void> all;
  std::function<void(absl::StatusOr<StepResult>)> next = [&](absl::StatusOr<StepResult> result) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (--left == 0) return all.set_value();
    stream->Submit(step.For(sequence), next);
  };
  stream->Submit(step.For(sequence), next);
  all.get_future().wait();
  stream->Drain();
  EXPECT_EQ(sequence.position(1), 100u);
}

TEST(StepStreamTest, ARestartedServerIsFoundAgainAndItsLostSequencesAreReported) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(5);
  const TestStep step = RandomStep(&rng, 2);
  ASSERT_TRUE(stream->Run(step.For(sequence)).ok());
  server.Restart();  // the fake keeps its sequences
  EXPECT_TRUE(stream->Run(step.For(sequence)).ok());
  EXPECT_EQ(sequence.Get()->layers[0].position, 4u);
  ASSERT_TRUE(client.Attach(sequence.id())->Release().ok());
  EXPECT_EQ(ErrorReason(stream->Run(step.For(sequence)).status()), Reason::kSequenceUnknown);
}

TEST(StepStreamTest, WithoutAServerStepsFailOnceTheTimeForReconnectingIsOver) {
  auto server = std::make_unique<FakePleServer>();
  Client client = *Client::Connect({.address = server->address(), .release_timeout = absl::Milliseconds(1)});
  std::unique_ptr<StepStream> stream = *client.OpenStream({.reconnect_timeout = absl::ZeroDuration()});
  Sequence sequence = *client.OpenSequence();
  server.reset();
  std::mt19937 rng(6);
  const TestStep step = RandomStep(&rng, 2);
  EXPECT_TRUE(absl::IsUnavailable(stream->Run(step.For(sequence)).status()));
}

TEST(StepStreamTest, DestroyingTheStreamCancelsWhatIsUnanswered) {
  auto server = std::make_unique<FakePleServer>();
  Client client = *Client::Connect({.address = server->address(), .release_timeout = absl::Milliseconds(1)});
  std::unique_ptr<StepStream> stream = *client.OpenStream({.reconnect_timeout = absl::InfiniteDuration()});
  Sequence sequence = *client.OpenSequence();
  server.reset();
  std::mt19937 rng(7);
  const TestStep step = RandomStep(&rng, 2);
  std::future<absl::StatusOr<StepResult>> result = stream->Submit(step.For(sequence));
  stream.reset();
  EXPECT_TRUE(absl::IsCancelled(result.get().status()));
}

TEST(StepStreamTest, DrainingAndStatsReachTheCaller) {
  FakePleServer server;
  Client client = *Client::Connect({.address = server.address()});
  std::unique_ptr<StepStream> stream = *client.OpenStream();
  Sequence sequence = *client.OpenSequence();
  std::mt19937 rng(8);
  const TestStep step = RandomStep(&rng, 3);
  absl::StatusOr<StepResult> result = stream->Run(step.For(sequence));
  EXPECT_FALSE(result->draining);
  EXPECT_EQ(result->stats.rows, 3 * kHeads);
  EXPECT_EQ(result->stats.hits, 3 * kHeads);
  server.SetDraining();
  EXPECT_TRUE(stream->Run(step.For(sequence))->draining);
}

}  // namespace
}  // namespace pleiad::client::testing
