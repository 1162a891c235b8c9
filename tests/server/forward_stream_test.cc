// ForwardStream against a scripted engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/test_server.h"
#include "tests/support/raw_call.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;

class Stream {
 public:
  explicit Stream(TestServer& server) : rpc_(server.stub().ForwardStream(&context_)) {}

  bool Write(const v1::ForwardRequest& request) { return rpc_->Write(request); }
  void HalfClose() { rpc_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  v1::ForwardResponse Read() {
    v1::ForwardResponse response;
    EXPECT_TRUE(rpc_->Read(&response));
    return response;
  }
  // Reads to the end; responses go to `ids`.
  grpc::Status Finish(std::vector<uint64_t>* ids = nullptr) {
    v1::ForwardResponse response;
    while (rpc_->Read(&response)) {
      if (ids != nullptr) ids->push_back(response.request_id());
    }
    return rpc_->Finish();
  }
  const grpc::ClientContext& context() const { return context_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> rpc_;
};

ServerFlags BoundedFlags(uint32_t requests) {
  ServerFlags flags = TestFlags();
  flags.max_inflight_requests = requests;
  return flags;
}

TEST(ForwardStream, AnswersInOrderAndEndsAfterTheHalfClose) {
  TestServer server;
  Stream stream(server);
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(stream.Write(Step(id, 1, static_cast<float>(id))));
  stream.HalfClose();
  for (uint64_t id = 1; id <= 100; ++id) {
    const v1::ForwardResponse response = stream.Read();
    ASSERT_EQ(response.request_id(), id);
    ASSERT_EQ(response.output().data(), Step(id, 1, static_cast<float>(id)).highway().data());
  }
  EXPECT_TRUE(stream.Finish().ok());
}

// One step at a time, so that none has to wait for another: the thread sleeps or is ready for the next.
TEST(ForwardStream, WhatComesOftenIsReceivedByTheThreadThatSpins) {
  ServerFlags flags = TestFlags();
  flags.spin = absl::Hours(1);
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags);
  Stream stream(server);
  const auto received = [&server](absl::string_view thread) {
    const std::string page = server.Scrape();
    const std::string line = absl::StrCat("pleiad_stream_requests_total{thread=\"", thread, "\"} ");
    return std::stoul(page.substr(page.find(line) + line.size()));
  };
  uint64_t id = 0;
  while (received("spinning") < 20) {
    ++id;
    ASSERT_TRUE(stream.Write(Step(id, 1, static_cast<float>(id))));
    const v1::ForwardResponse response = stream.Read();
    ASSERT_EQ(response.request_id(), id);
    ASSERT_EQ(response.output().data(), Step(id, 1, static_cast<float>(id)).highway().data());
  }
  EXPECT_EQ(received("grpc") + received("spinning"), id);
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(ForwardStream, AnEmptyStreamEndsWell) {
  TestServer server;
  Stream stream(server);
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

std::vector<uint64_t> IdsOf(const testing::RawResult& result) {
  std::vector<uint64_t> ids;
  for (const v1::ForwardResponse& response : result.responses) ids.push_back(response.request_id());
  return ids;
}

TEST(ForwardStream, BytesThatAreNoRequestEndItWithAnError) {
  TestServer server;
  const std::string whole = Step(1, 1).SerializeAsString();
  for (const std::string& bytes : {whole.substr(0, whole.size() - 1), std::string("\x08"), std::string("\xff\xff")}) {
    const testing::RawResult result = testing::StreamRaw(server.channel(), {whole, bytes, whole});
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << result.status.error_message();
    EXPECT_THAT(IdsOf(result), ElementsAre(1));
    EXPECT_EQ(testing::ForwardRaw(server.channel(), bytes).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  const testing::RawResult result = testing::StreamRaw(server.channel(), {whole, ""});
  EXPECT_TRUE(result.status.ok()) << "an empty message is an empty request";
  EXPECT_THAT(IdsOf(result), ElementsAre(1, 0));
}

TEST(ForwardStream, AFailedRequestGetsItsOwnResponseAndTheStreamGoesOn) {
  TestServer server;
  Stream stream(server);
  v1::ForwardRequest with_region = Step(2, 1);
  with_region.mutable_highway()->mutable_region();
  stream.Write(Step(1, 5000));
  stream.Write(with_region);
  stream.Write(Step(3, 1));
  const v1::ForwardResponse unknown = stream.Read();
  EXPECT_EQ(unknown.request_id(), 1u);
  EXPECT_EQ(unknown.status().code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.status().details(0).reason(), v1::REASON_SEQUENCE_UNKNOWN);
  EXPECT_FALSE(unknown.has_output());
  const v1::ForwardResponse refused = stream.Read();
  EXPECT_EQ(refused.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.status().details(0).reason(), v1::REASON_NOT_SUPPORTED);
  const v1::ForwardResponse good = stream.Read();
  EXPECT_EQ(good.request_id(), 3u);
  EXPECT_EQ(good.status().code(), 0);
  EXPECT_EQ(server.engine().submitted(), 3u) << "a refused request keeps its place in the queues";
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(ForwardStream, ManyStepsAreInFlightAndAllAreAnsweredAfterTheHalfClose) {
  TestServer server(FakeEngine::Mode::kHold);
  Stream stream(server);
  for (uint64_t id = 1; id <= 8; ++id) stream.Write(Step(id, id));
  stream.HalfClose();
  server.engine().WaitForHeld(8);
  for (int i = 0; i < 8; ++i) server.engine().AnswerOldest();
  std::vector<uint64_t> ids;
  EXPECT_TRUE(stream.Finish(&ids).ok());
  EXPECT_THAT(ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(ForwardStream, CancellingItCancelsItsStepsAndGivesTheirRoomBack) {
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, BoundedFlags(6));
  for (size_t round = 1; round <= 3; ++round) {
    Stream stream(server);
    for (uint64_t id = 1; id <= 4; ++id) stream.Write(Step(id, id));  // the fourth waits for room
    server.engine().WaitForHeld(3);
    stream.Cancel();
    server.engine().WaitForCancels(3 * round);
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(server.engine().held(), 0u);
  }
  EXPECT_EQ(server.engine().submitted(), 9u) << "what waited for room never reached the engine";
}

TEST(ForwardStream, ReadsNoMoreThanItsHalfUntilThereIsRoom) {
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, BoundedFlags(4));
  Stream stream(server);
  for (uint64_t id = 1; id <= 5; ++id) stream.Write(Step(id, 1));
  stream.HalfClose();
  for (uint64_t answered = 0; answered < 4; ++answered) {
    server.engine().WaitForHeld(2);
    EXPECT_EQ(server.engine().held(), 2u);
    EXPECT_EQ(server.engine().submitted(), answered + 2);
    server.engine().AnswerOldest();
    EXPECT_EQ(stream.Read().request_id(), answered + 1);
  }
  server.engine().AnswerOldest();
  std::vector<uint64_t> ids;
  EXPECT_TRUE(stream.Finish(&ids).ok());
  EXPECT_THAT(ids, ElementsAre(5));
}

TEST(ForwardStream, TheWholeBoundIsSharedByStreams) {
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, BoundedFlags(4));
  Stream a(server), b(server), c(server);
  a.Write(Step(1, 1));
  a.Write(Step(2, 1));
  b.Write(Step(1, 2));
  b.Write(Step(2, 2));
  server.engine().WaitForHeld(4);
  c.Write(Step(9, 3));
  grpc::ClientContext context;
  v1::ForwardResponse response;
  EXPECT_EQ(server.stub().Forward(&context, Step(1, 4), &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  server.engine().AnswerOldest();
  server.engine().WaitForHeld(4);
  EXPECT_EQ(server.engine().last().segments[0].sequence, SequenceId(3));
  server.engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  while (server.engine().held() > 0) server.engine().AnswerOldest();
  for (Stream* stream : {&a, &b, &c}) {
    stream->HalfClose();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

TEST(ForwardStream, IsRefusedWhileLoading) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  Stream stream(server);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(TrailingStatus(stream.context()).details(0).reason(), v1::REASON_LOADING);
}

TEST(ForwardStream, AnswersEverythingBeforeTheServerStops) {
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, BoundedFlags(4));
  Stream stream(server), idle(server);
  for (uint64_t id = 1; id <= 3; ++id) stream.Write(Step(id, 1));  // the third waits for room
  server.engine().WaitForHeld(2);
  server.server().Terminate();
  server.server().Terminate();
  EXPECT_EQ(server.Wait(), kExitUnanswered);
  for (uint64_t id = 1; id <= 2; ++id) {
    const v1::ForwardResponse response = stream.Read();
    EXPECT_EQ(response.request_id(), id);
    EXPECT_EQ(response.status().code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_TRUE(response.draining());
  }
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(idle.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace pleiad
