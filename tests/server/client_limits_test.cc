// What one client may have in flight, against a scripted engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tests/server/test_server.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

grpc::Status Forward(TestServer& server, uint64_t id, std::string* message = nullptr) {
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status status = server.stub().Forward(&context, Step(id, 1), &response);
  if (message != nullptr) *message = TrailingStatus(context).message();
  return status;
}

// Refused while another call of the client is held, served afterwards.
void ExpectRefusedMeanwhile(const ServerFlags& flags, const std::string& text) {
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags);
  grpc::Status held;
  std::thread call([&] { held = Forward(server, 1); });
  server.engine().WaitForHeld(1);
  std::string message;
  EXPECT_EQ(Forward(server, 2, &message).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(message, HasSubstr(text));
  server.engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  server.engine().AnswerOldest();
  call.join();
  EXPECT_TRUE(held.ok());
  // Bytes are held until gRPC has sent the answer.
  while (server.Scrape().find("pleiad_inflight_bytes 0\n") == std::string::npos) {
  }
  EXPECT_TRUE(Forward(server, 3).ok());
}

TEST(ClientLimits, CallsPastTheRequestsOfAClientAreRefused) {
  ServerFlags flags = TestFlags();
  flags.access.client_max_requests = 1;
  ExpectRefusedMeanwhile(
      flags, "peer ipv4:127.0.0.1: 1 requests in flight: at most 1 requests in flight (--client-max-requests)");
}

TEST(ClientLimits, CallsPastTheBytesOfAClientAreRefused) {
  ServerFlags flags = TestFlags();
  flags.access.client_max_bytes = 20;
  ExpectRefusedMeanwhile(flags, "at most 20 bytes in flight (--client-max-bytes)");
}

TEST(ClientLimits, ARefusalForBytesCountsTheRequestItself) {
  ServerFlags flags = TestFlags();
  flags.access.client_max_bytes = 1000;
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags);
  std::thread call([&] { Forward(server, 1); });
  server.engine().WaitForHeld(1);
  // Less than its share is in flight, and the history of a lookup passes it.
  v1::LookupRequest lookup;
  lookup.add_token_ids(11);
  v1::LookupSegment* segment = lookup.add_segments();
  segment->set_num_tokens(1);
  segment->mutable_context_ids()->Resize(1000, 11);
  grpc::ClientContext context;
  v1::LookupResponse response;
  EXPECT_EQ(server.stub().Lookup(&context, lookup, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const v1::Status status = TrailingStatus(context);
  ASSERT_EQ(status.details_size(), 1);
  EXPECT_GT(std::stoull(status.details(0).value()), 1000u + 500u) << "both requests";
  EXPECT_THAT(status.message(), HasSubstr("bytes in flight with this request: at most 1000 bytes"));
  server.engine().AnswerOldest();
  call.join();
}

TEST(ClientLimits, ALookupWithALongHistoryIsRefusedWithWhatIsEnough) {
  TestServer server;
  v1::LookupRequest lookup;
  lookup.set_want_row_ids(true);
  lookup.add_token_ids(11);
  v1::LookupSegment* segment = lookup.add_segments();
  segment->set_num_tokens(1);
  segment->mutable_context_ids()->Resize(125'000, 11);
  const auto call = [&](v1::Status* status) {
    grpc::ClientContext context;
    v1::LookupResponse response;
    const grpc::Status ended = server.stub().Lookup(&context, lookup, &response);
    *status = TrailingStatus(context);
    return ended.error_code();
  };
  v1::Status status;
  EXPECT_EQ(call(&status), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.message(), HasSubstr("request 125"));
  EXPECT_THAT(status.message(), HasSubstr("of a segment's context_ids the last 2 are enough"));
  ASSERT_EQ(status.details_size(), 1);
  EXPECT_THAT(status.details(0).limit(), HasSubstr("context_ids"));
  segment->mutable_context_ids()->Truncate(2);
  EXPECT_EQ(call(&status), grpc::StatusCode::OK) << status.message();
}

TEST(ClientLimits, AStreamIsNotReadPastThem) {
  ServerFlags flags = TestFlags();
  flags.access.client_max_requests = 2;
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags);
  grpc::ClientContext context;
  const auto stream = server.stub().ForwardStream(&context);
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(stream->Write(Step(id, 1)));
  stream->WritesDone();
  server.engine().WaitForHeld(2);
  EXPECT_EQ(Forward(server, 9).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::ForwardResponse response;
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_LE(server.engine().held(), 2u);
    server.engine().WaitForHeld(1);
    server.engine().AnswerOldest();
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.request_id(), id);
    EXPECT_EQ(response.status().code(), 0);
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace pleiad
