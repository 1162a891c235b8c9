// Refusals that depend on what is in flight: a full server, a cancel, a message beyond gRPC's limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/refusal_rows.h"
#include "tests/e2e/sessions.h"

namespace pleiad::testing {
namespace {

constexpr uint32_t kLongStep = 2048;

class InFlightTest : public ::testing::Test {
 protected:
  InFlightTest() {
    CheckpointSpec spec;
    spec.geometry.hidden_size = 256;
    WriteCheckpoint(spec, model_.path());
  }

  void Start(uint32_t inflight_requests) {
    server_ = std::make_unique<InProcessServer>(model_.path(), [=](ServerFlags& flags) {
      flags.max_tokens = kLongStep;
      flags.batch_invariant = true;
      flags.max_inflight_requests = inflight_requests;
      flags.max_inflight_bytes = uint64_t{1} << 30;
    });
    client_ = std::make_unique<client::Client>(server_->Connect());
  }
  uint64_t Open() {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_TRUE(server_->stub().OpenSequence(&context, {}, &response).ok());
    return response.sequence_id();
  }
  // Tokens of one kind, a highway of zeros: a small request with an answer of 4 KiB a token.
  v1::ForwardRequest Step(uint64_t sequence, uint32_t tokens) {
    v1::ForwardRequest request;
    v1::Segment* segment = request.add_segments();
    segment->set_sequence_id(sequence);
    segment->set_num_tokens(tokens);
    for (uint32_t i = 0; i < tokens; ++i) request.add_token_ids(i % 50);
    request.mutable_highway()->set_zeros(true);
    return request;
  }
  Reply Unary(const v1::ForwardRequest& request) {
    v1::ForwardResponse response;
    return CallOf(server_->stub(), &v1::Ple::Stub::Forward, request, &response);
  }
  std::string State(uint64_t sequence) { return VisibleState(server_->stub(), sequence); }
  uint64_t PositionOf(uint64_t sequence) {
    grpc::ClientContext context;
    v1::GetSequenceRequest request;
    request.set_sequence_id(sequence);
    v1::GetSequenceResponse response;
    EXPECT_TRUE(server_->stub().GetSequence(&context, request, &response).ok());
    return response.layers(0).position();
  }

  TempDir model_;
  std::unique_ptr<InProcessServer> server_;
  std::unique_ptr<client::Client> client_;
};

// A stream that is written to and not read until the end.
struct UnreadStream {
  explicit UnreadStream(v1::Ple::Stub& stub) : stream(stub.ForwardStream(&context)) {}
  ~UnreadStream() {
    context.TryCancel();
    v1::ForwardResponse ignored;
    while (stream->Read(&ignored)) {
    }
    (void)stream->Finish();
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream;
};

TEST_F(InFlightTest, R10_PastTheBoundUnaryCallsAreRefusedAndNothingMoves) {
  Start(/*inflight_requests=*/2);
  const uint64_t first = Open(), second = Open(), bystander = Open();
  ASSERT_EQ(Unary(Step(bystander, 5)).code, 0);
  const std::string before = State(bystander);
  {
    // Two answers of 8 MiB that nobody reads stay in flight.
    UnreadStream one(server_->stub()), two(server_->stub());
    ASSERT_TRUE(one.stream->Write(Step(first, kLongStep)));
    ASSERT_TRUE(two.stream->Write(Step(second, kLongStep)));
    ASSERT_TRUE(AwaitMetrics(server_->metrics_port(), [](const std::string& page) {
      return MetricValue(page, "pleiad_tokens_total{layer=\"1\"}") >= 5 + 2 * kLongStep;
    }));
    const Reply refused = Unary(Step(bystander, 1));
    EXPECT_EQ(refused.code, static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
    ASSERT_EQ(refused.status.details_size(), 1);
    EXPECT_EQ(refused.status.details(0).reason(), v1::REASON_TOO_MANY_IN_FLIGHT);
    EXPECT_THAT(refused.status.message(), ::testing::HasSubstr("--max-inflight-requests"));
    v1::OpenSequenceResponse opened;
    EXPECT_EQ(CallOf(server_->stub(), &v1::Ple::Stub::OpenSequence, v1::OpenSequenceRequest(), &opened).code,
              static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
    EXPECT_EQ(PositionOf(bystander), 5u);
    v1::ForwardResponse response;
    EXPECT_TRUE(one.stream->Read(&response) && two.stream->Read(&response));
  }
  // There is room again once gRPC has let go of the answers.
  Reply reply;
  for (int attempt = 0; attempt < 100000 && (attempt == 0 || reply.code != 0); ++attempt) {
    reply = Unary(Step(bystander, 0));
  }
  EXPECT_EQ(reply.code, 0);
  EXPECT_EQ(State(bystander), before);
  ASSERT_EQ(Unary(Step(bystander, 1)).code, 0);
  EXPECT_NE(State(bystander), before) << "a step shows";
}

TEST_F(InFlightTest, R11_ACancelledStreamLeavesWholeSteps) {
  Start(/*inflight_requests=*/64);
  const uint64_t sequence = Open(), control = Open();
  {
    UnreadStream stream(server_->stub());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(stream.stream->Write(Step(sequence, 200)));
  }
  ASSERT_TRUE(AwaitMetrics(server_->metrics_port(), [](const std::string& page) {
    return MetricValue(page, "pleiad_rpc_requests_total{rpc=\"ForwardStream\",code=\"CANCELLED\"}") >= 1;
  }));
  const uint64_t position = PositionOf(sequence);
  EXPECT_EQ(position % 200, 0u);
  EXPECT_LE(position, 1600u);
  for (uint64_t at = 0; at < position; at += 200) ASSERT_EQ(Unary(Step(control, 200)).code, 0);
  EXPECT_EQ(State(sequence), State(control));
}

TEST_F(InFlightTest, R8_AMessageBeyondGrpcsLimitEndsItsOwnRpcAlone) {
  Start(/*inflight_requests=*/64);
  const uint64_t sequence = Open(), neighbour = Open();
  ASSERT_EQ(Unary(Step(sequence, 5)).code, 0);
  const std::string before = State(sequence);
  const auto stream = *client_->OpenStream();
  client::Sequence beside = *client_->Attach(client::SequenceId{neighbour});
  std::mt19937 random(70);
  const Passage passage = RandomPassage(random, 9, client_->model());
  RunPassage(*stream, beside, passage);

  v1::ForwardRequest huge = Step(sequence, 1);
  huge.mutable_highway()->set_data(std::string(2 * client_->model().max_message_bytes + 1, 'x'));
  const Reply refused = Unary(huge);
  EXPECT_EQ(refused.code, static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(State(sequence), before);
  EXPECT_EQ(RunPassage(*stream, beside, passage).size(), passage.highway.size() * sizeof(float))
      << "the stream beside it lives";
  EXPECT_EQ(PositionOf(neighbour), 18u);
}

}  // namespace
}  // namespace pleiad::testing
