// Unary RPCs against a scripted engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>

#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/server/test_server.h"
#include "tests/support/raw_call.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Service, GetModelSaysWhatIsServed) {
  TestServer server;
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(server.stub().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.model_id(), "fake-model");
  EXPECT_EQ(model.server_version(), kServerVersion);
  EXPECT_THAT(model.capabilities(), ElementsAre("f32", "bf16", "delta", "prestage", "lookup", "rollback"));
  EXPECT_EQ(model.geometry().channels(), 8u);
  EXPECT_EQ(model.geometry().state_len(), 9u);
  EXPECT_EQ(model.eos_token_id(), 7u);
  EXPECT_EQ(model.image_token_id(), 998u);
  EXPECT_FALSE(model.has_video_token_id());
  ASSERT_EQ(model.layers_size(), 1);
  EXPECT_EQ(model.layers(0).layer_index(), 1u);
  EXPECT_EQ(model.layers(0).rows(), 256u);
  EXPECT_EQ(model.layers(0).row_dtype(), "BF16");
  EXPECT_EQ(model.layers(0).aux_bytes(), 4u + 8 + 9 * 8 * 4);
  EXPECT_EQ(model.limits().max_tokens(), 16u);
  EXPECT_EQ(model.limits().max_message_bytes(), 16u * (4 * 8 + 16) + 65536);
  EXPECT_EQ(model.device(), "cpu");
  EXPECT_EQ(model.table_mode(), "resident");
}

TEST(Service, TheLogNamesTheLabelOfASequenceAndNotItsId) {
  std::ostringstream log;
  const auto kept = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  logger->set_level(spdlog::level::debug);
  logger->set_pattern("%v");
  spdlog::set_default_logger(logger);
  {
    TestServer server;
    v1::OpenSequenceRequest request;
    request.set_label("chat\n7");
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_TRUE(server.stub().OpenSequence(&context, request, &response).ok());
  }
  spdlog::set_default_logger(kept);
  EXPECT_THAT(log.str(), HasSubstr("\nopened a sequence, label \"chat\\n7\"\n"));
}

TEST(Service, ForwardReturnsTheTensor) {
  TestServer server;
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const v1::ForwardRequest request = Step(77, 1, 1.5f);
  ASSERT_TRUE(server.stub().Forward(&context, request, &response).ok());
  EXPECT_EQ(response.request_id(), 77u);
  EXPECT_EQ(response.status().code(), 0);
  EXPECT_EQ(response.output().dtype(), v1::DTYPE_F32);
  EXPECT_EQ(response.output().data(), request.highway().data());
  EXPECT_EQ(response.segments(0).position(), 1u);
  EXPECT_EQ(response.stats().rows(), 4u);
  EXPECT_FALSE(response.draining());
}

TEST(Service, AFailedUnaryForwardCarriesItsStatusInTheTrailer) {
  TestServer server;
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status status = server.stub().Forward(&context, Step(1, 5000), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  const v1::Status detail = TrailingStatus(context);
  EXPECT_EQ(detail.code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(detail.message(), status.error_message());
  EXPECT_EQ(detail.details(0).reason(), v1::REASON_SEQUENCE_UNKNOWN);
  EXPECT_EQ(detail.details(0).segment(), 0u);
}

TEST(Service, ARequestTheServerRefusesStillReachesItsQueues) {
  TestServer server;
  grpc::ClientContext context;
  v1::ForwardResponse response;
  v1::ForwardRequest request = Step(1, 1);
  request.mutable_output()->mutable_region();
  EXPECT_EQ(server.stub().Forward(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(TrailingStatus(context).details(0).reason(), v1::REASON_NOT_SUPPORTED);
  ASSERT_EQ(server.engine().submitted(), 1u);
  EXPECT_TRUE(server.engine().last().refused.has_value());
}

TEST(Service, TheSmallerOfDeadlineAndTimeoutCounts) {
  TestServer server;
  v1::ForwardRequest request = Step(1, 1);
  request.set_timeout_ms(50);
  {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
    ASSERT_TRUE(server.stub().Forward(&context, request, &response).ok());
    EXPECT_EQ(server.engine().last().timeout, absl::Milliseconds(50));
  }
  request.set_timeout_ms(4'000'000'000);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(server.stub().Forward(&context, request, &response).ok());
  EXPECT_LE(server.engine().last().timeout, absl::Hours(1) + absl::Minutes(5));
  EXPECT_GT(server.engine().last().timeout, absl::ZeroDuration());  // gRPC rounds deadlines up on the wire
}

TEST(Service, ACancelledUnaryCallCancelsItsStep) {
  TestServer server(FakeEngine::Mode::kHold);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  grpc::Status status;
  std::thread call([&] { status = server.stub().Forward(&context, Step(1, 1), &response); });
  server.engine().WaitForHeld(1);
  context.TryCancel();
  server.engine().WaitForCancels(1);
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(server.engine().held(), 0u);
}

TEST(Service, UnaryCallsPastTheBoundAreRefused) {
  ServerFlags flags = TestFlags();
  flags.max_inflight_requests = 1;
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags);
  grpc::ClientContext held_context;
  v1::ForwardResponse held_response;
  grpc::Status held_status;
  std::thread call([&] { held_status = server.stub().Forward(&held_context, Step(1, 1), &held_response); });
  server.engine().WaitForHeld(1);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  EXPECT_EQ(server.stub().Forward(&context, Step(2, 1), &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(TrailingStatus(context).details(0).reason(), v1::REASON_TOO_MANY_IN_FLIGHT);
  EXPECT_THAT(TrailingStatus(context).message(), HasSubstr("--max-inflight-requests"));
  grpc::ClientContext release_context;
  v1::ReleaseRequest release;
  release.set_sequence_id(1);
  v1::ReleaseResponse released;
  EXPECT_TRUE(server.stub().Release(&release_context, release, &released).ok()) << "what makes room is never refused";
  server.engine().AnswerOldest();
  call.join();
  EXPECT_TRUE(held_status.ok());
}

TEST(Service, SequenceCallsReachTheEngineAndBack) {
  TestServer server;
  v1::OpenSequenceRequest open;
  open.set_client_key("known");
  v1::OpenSequenceResponse opened;
  grpc::ClientContext open_context;
  ASSERT_TRUE(server.stub().OpenSequence(&open_context, open, &opened).ok());
  EXPECT_EQ(opened.sequence_id(), 1u);
  EXPECT_TRUE(opened.existing());

  v1::GetSequenceRequest get;
  get.set_sequence_id(1);
  get.set_epoch(4);
  v1::GetSequenceResponse state;
  grpc::ClientContext get_context;
  ASSERT_TRUE(server.stub().GetSequence(&get_context, get, &state).ok());
  EXPECT_EQ(state.layers(0).layer_index(), 1u);
  EXPECT_EQ(state.layers(0).position(), 30u);
  EXPECT_EQ(state.layers(0).low(), 22u);
  EXPECT_EQ(state.layers(0).last_step_start(), 25u);
  EXPECT_EQ(state.layers(0).prestaged_tokens(), 4u);
  EXPECT_EQ(state.idle_ms(), 1500u);
  EXPECT_EQ(state.epoch(), 4u);

  v1::SnapshotRequest snapshot;
  snapshot.set_sequence_id(1);
  v1::SnapshotResponse blobs;
  grpc::ClientContext snapshot_context;
  ASSERT_TRUE(server.stub().Snapshot(&snapshot_context, snapshot, &blobs).ok());
  EXPECT_EQ(blobs.model_id(), "fake-model");
  EXPECT_EQ(blobs.layers(0).aux(), "blob");
  EXPECT_EQ(blobs.layers(0).position(), 30u);

  v1::RestoreRequest restore;
  restore.set_sequence_id(1);
  v1::RestoreResponse restored;
  grpc::ClientContext restore_context;
  EXPECT_TRUE(server.stub().Restore(&restore_context, restore, &restored).ok());

  v1::ReleaseRequest release;
  release.set_sequence_id(5000);
  v1::ReleaseResponse released;
  grpc::ClientContext release_context;
  EXPECT_TRUE(server.stub().Release(&release_context, release, &released).ok());
  EXPECT_FALSE(released.released());
}

TEST(Service, SequenceZeroIsForForwardAlone) {
  TestServer server;
  grpc::ClientContext a, b, c, d;
  v1::GetSequenceResponse state;
  v1::SnapshotResponse blobs;
  v1::RestoreResponse restored;
  v1::ReleaseResponse released;
  EXPECT_EQ(server.stub().GetSequence(&a, {}, &state).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.stub().Snapshot(&b, {}, &blobs).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.stub().Restore(&c, {}, &restored).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.stub().Release(&d, {}, &released).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(TrailingStatus(d).details(0).reason(), v1::REASON_INVALID_FIELD);
}

TEST(Service, LookupReturnsWhatWasWanted) {
  TestServer server;
  v1::LookupRequest request;
  request.add_segments()->set_num_tokens(1);
  request.add_token_ids(11);
  request.set_want_row_ids(true);
  v1::LookupResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().Lookup(&context, request, &response).ok());
  EXPECT_THAT(response.row_ids(), ElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(response.has_embeddings());
  request.set_want_embeddings(true);
  grpc::ClientContext second;
  ASSERT_TRUE(server.stub().Lookup(&second, request, &response).ok());
  EXPECT_EQ(response.embeddings().dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(response.embeddings().data().size(), 64u);
}

TEST(Service, WithoutTheFlagNoRegionsAreAttached) {
  TestServer server;
  grpc::ClientContext context;
  auto stream = server.stub().AttachRegions(&context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(TrailingStatus(context).details(0).reason(), v1::REASON_NOT_SUPPORTED);
}

TEST(Service, AMessageBeyondGrpcsLimitEndsOnlyItsCall) {
  TestServer server;
  v1::ForwardRequest request = Step(1, 1);
  request.mutable_highway()->set_data(std::string(200'000, 'x'));
  grpc::ClientContext context;
  v1::ForwardResponse response;
  EXPECT_EQ(server.stub().Forward(&context, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(server.engine().submitted(), 0u);
  grpc::ClientContext next;
  EXPECT_TRUE(server.stub().Forward(&next, Step(2, 1), &response).ok());
}

// Parsed, each unknown field or empty submessage takes some forty times its bytes.
TEST(Service, UnaryRequestsAreBoundedBeforeTheyAreParsed) {
  TestServer server;
  std::string unknown, malformed = "\x0a\x7f";
  for (int i = 0; i < 20'000; ++i) unknown += std::string("\xf8\x07\x00", 3);
  const std::string few = unknown.substr(0, 300);
  for (const std::string rpc :
       {"GetModel", "OpenSequence", "Lookup", "GetSequence", "Snapshot", "Restore", "Release"}) {
    grpc::ByteBuffer answer;
    grpc::Slice slice(unknown);
    grpc::Status status = testing::CallRaw(server.channel(), rpc, grpc::ByteBuffer(&slice, 1), &answer);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << rpc;
    EXPECT_THAT(status.error_message(), HasSubstr("submessages and unknown fields")) << rpc;
    slice = grpc::Slice(malformed);
    status = testing::CallRaw(server.channel(), rpc, grpc::ByteBuffer(&slice, 1), &answer);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << rpc;
    EXPECT_THAT(status.error_message(), HasSubstr("must be a serialised " + rpc + "Request")) << rpc;
    // A newer client's.
    slice = grpc::Slice(few);
    status = testing::CallRaw(server.channel(), rpc, grpc::ByteBuffer(&slice, 1), &answer);
    EXPECT_THAT(status.error_message(), ::testing::Not(HasSubstr("unknown fields"))) << rpc;
  }
  v1::LookupRequest lookup;
  for (int i = 0; i < 20'000; ++i) lookup.add_segments();
  grpc::ClientContext context;
  v1::LookupResponse found;
  EXPECT_THAT(server.stub().Lookup(&context, lookup, &found).error_message(), HasSubstr("submessages"));
}

TEST(Service, CountsRpcsAndItems) {
  TestServer server;
  grpc::ClientContext good, bad;
  v1::ForwardResponse response;
  EXPECT_TRUE(server.stub().Forward(&good, Step(1, 1), &response).ok());
  EXPECT_FALSE(server.stub().Forward(&bad, Step(2, 5000), &response).ok());
  const std::string page = server.Scrape();
  EXPECT_THAT(page, HasSubstr("pleiad_rpc_requests_total{rpc=\"Forward\",code=\"OK\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("pleiad_rpc_requests_total{rpc=\"Forward\",code=\"NOT_FOUND\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("pleiad_forward_items_total{mode=\"forward\",code=\"NOT_FOUND\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("pleiad_tokens_total{layer=\"1\"} 42\n"));
  EXPECT_THAT(page, HasSubstr("pleiad_model_info{model_id=\"fake-model\",table=\"resident\",row_dtype=\"BF16\"} 1\n"));
}

}  // namespace
}  // namespace pleiad
