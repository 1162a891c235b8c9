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
