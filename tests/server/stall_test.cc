// Streams whose clients do not read.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>

#include "server/read_progress.h"
#include "server/stall_watch.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_clock.h"
#include "tests/support/raw_http2.h"

namespace pleiad {
namespace {

using testing::RawHttp2;

constexpr char kForwardStream[] = "/pleiad.v1.Ple/ForwardStream";

class StallTest : public ::testing::Test {
 protected:
  StallTest() {
    ServerFlags flags = TestFlags();
    flags.max_inflight_requests = 2;  // one for each stream
    server_ = std::make_unique<TestServer>(FakeEngine::Mode::kHold, StartAs::kLoaded, flags, &clock_);
  }

  std::string address() { return server_->server().addresses().addresses.front().ToString(); }
  // A client of one stream that takes nothing of its answers.
  std::unique_ptr<RawHttp2> NewPeer() {
    auto peer = std::make_unique<RawHttp2>(address(), /*window=*/0);
    peer->Call(1, kForwardStream);
    return peer;
  }

  FakeClock clock_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StallTest, AnUnreadAnswerGivesWayToWhoWaits) {
  const auto one = NewPeer(), two = NewPeer();
  for (RawHttp2* peer : {one.get(), two.get()}) {
    ASSERT_TRUE(peer->SendWhole(1, Step(1, 1).SerializeAsString()));
    server_->engine().WaitForHeld(1);
    server_->engine().AnswerOldest();
  }
  server_->engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  grpc::ClientContext context;
  const auto stream = server_->stub().ForwardStream(&context);
  ASSERT_TRUE(stream->Write(Step(7, 1)));
  clock_.AwaitWaiter();  // somebody waits for room
  clock_.Advance(StallWatch::kPeriod);
  clock_.AwaitWaiterAnew();
  EXPECT_EQ(server_->engine().submitted(), 2u) << "too early";
  clock_.Advance(ReadProgress::kPatience);
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 7u);
  one->ReadToEnd(1);
  two->ReadToEnd(1);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(StallTest, AnUnreadUnaryAnswerGivesWayToo) {
  ServerFlags flags = TestFlags();
  flags.max_inflight_bytes = 1;  // one request at a time
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags, &clock_);
  RawHttp2 peer(server.server().addresses().addresses.front().ToString(), /*window=*/0);
  peer.Call(1, "/pleiad.v1.Ple/Forward");
  ASSERT_TRUE(peer.SendWhole(1, Step(1, 1).SerializeAsString()));
  server.engine().WaitForHeld(1);
  server.engine().AnswerOldest();
  server.engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  grpc::ClientContext context;
  const auto stream = server.stub().ForwardStream(&context);
  ASSERT_TRUE(stream->Write(Step(7, 1)));
  clock_.AwaitWaiter();
  clock_.Advance(StallWatch::kPeriod);
  clock_.AwaitWaiterAnew();
  EXPECT_EQ(server.engine().submitted(), 1u) << "too early";
  clock_.Advance(ReadProgress::kPatience);
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 7u);
  peer.ReadToEnd(1);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// Takes one answer, byte by byte.
void TakeAnswer(RawHttp2& peer) {
  size_t taken = 0, whole = 5;
  std::string bytes;
  while (taken < whole) {
    peer.OpenWindow(1, 1);
    RawHttp2::Frame frame = peer.Read();
    while (frame.type != RawHttp2::kData || frame.payload.empty()) {
      ASSERT_NE(frame.type, RawHttp2::kClosed);
      ASSERT_NE(frame.type, RawHttp2::kReset);
      frame = peer.Read();
    }
    bytes += frame.payload;
    taken += frame.payload.size();
    if (taken == 5) whole += static_cast<uint8_t>(bytes[4]);  // the length's last byte
  }
}

TEST_F(StallTest, AStreamThatTakesAnAnswerNowAndThenGivesWayAsWell) {
  ServerFlags flags = TestFlags();
  flags.max_inflight_requests = 8;  // seven of streams that are not known to read
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags, &clock_);
  const std::string address = server.server().addresses().addresses.front().ToString();
  RawHttp2 slow(address, /*window=*/0), deaf(address, /*window=*/0);
  for (RawHttp2* peer : {&slow, &deaf}) {
    peer->Call(1, kForwardStream);
    for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(peer->SendWhole(1, Step(id, 1).SerializeAsString()));
  }
  clock_.AwaitWaiter();  // an eighth request waits
  clock_.Advance(absl::Seconds(4));
  clock_.AwaitWaiterAnew();
  TakeAnswer(slow);
  while (server.engine().submitted() < 8) std::this_thread::yield();  // the server knows of it: the eighth has its room
  ASSERT_TRUE(slow.SendWhole(1, Step(5, 1).SerializeAsString()));
  clock_.Advance(ReadProgress::kPatience - absl::Seconds(4) + StallWatch::kPeriod);
  slow.ReadToEnd(1);
  deaf.ReadToEnd(1);
}

TEST_F(StallTest, WhereThereIsRoomAnAnswerMayStayUnread) {
  const auto slow = NewPeer();
  ASSERT_TRUE(slow->SendWhole(1, Step(1, 1).SerializeAsString()));
  server_->engine().WaitForHeld(1);
  server_->engine().AnswerOldest();
  ASSERT_TRUE(slow->SendWhole(1, Step(2, 1).SerializeAsString()));  // waits for its own half
  server_->engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  grpc::ClientContext context;
  const auto stream = server_->stub().ForwardStream(&context);
  for (uint64_t id = 1; id <= 3; ++id) {
    clock_.Advance(absl::Hours(1));
    v1::ForwardResponse response;
    ASSERT_TRUE(stream->Write(Step(id, 1)));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.request_id(), id);
  }
  slow->OpenWindow(1, 1 << 20);
  for (int answers = 0; answers < 2;) {
    const RawHttp2::Frame frame = slow->Read();
    ASSERT_NE(frame.type, RawHttp2::kClosed);
    ASSERT_NE(frame.type, RawHttp2::kReset);
    if (frame.type == RawHttp2::kData && !frame.payload.empty()) ++answers;
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// A stream with eight answers of 4 MiB, while others wait for room that it, and steps that are held, have.
class LargeAnswersTest : public ::testing::Test {
 protected:
  LargeAnswersTest() {
    constexpr uint32_t kTokens = 1 << 17;
    ServerFlags flags = TestFlags();
    flags.max_tokens = kTokens;
    flags.max_inflight_requests = 16;  // half of them for one stream
    flags.max_inflight_bytes = 1 << 30;
    server_ = std::make_unique<TestServer>(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags, &clock_);
    const std::string address = server_->server().addresses().addresses.front().ToString();
    peer_ = std::make_unique<RawHttp2>(address, /*window=*/0);
    peer_->OpenWindow(0, 1 << 30);
    peer_->Call(1, kForwardStream);
    v1::ForwardRequest large = Step(1, 1);
    large.mutable_segments(0)->set_num_tokens(kTokens);
    large.mutable_token_ids()->Resize(kTokens, 11);
    large.mutable_highway()->Clear();
    large.mutable_highway()->set_zeros(true);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(peer_->SendWhole(1, large.SerializeAsString()));
    while (server_->engine().submitted() < 8) std::this_thread::yield();
    server_->engine().SetMode(FakeEngine::Mode::kHold);
    // More than there will be room for when all answers are taken.
    for (auto& other : others_) {
      other = std::make_unique<RawHttp2>(address, /*window=*/0);
      other->Call(1, kForwardStream);
      EXPECT_TRUE(other->SendWhole(1, Step(2, 1).SerializeAsString()));
    }
    clock_.AwaitWaiter();
  }

  // False: the stream was ended.
  bool Take(uint32_t bytes) {
    peer_->OpenWindow(1, bytes);
    for (size_t taken = 0; taken < bytes;) {
      const RawHttp2::Frame frame = peer_->Read();
      if (frame.type == RawHttp2::kClosed || frame.type == RawHttp2::kReset) return false;
      if (frame.type == RawHttp2::kData) taken += frame.payload.size();
    }
    return true;
  }
  // The watch looks at every call.
  void Look() {
    clock_.Advance(StallWatch::kPeriod);
    clock_.AwaitWaiterAnew();
  }

  FakeClock clock_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<RawHttp2> peer_;
  std::array<std::unique_ptr<RawHttp2>, 20> others_;
};

TEST_F(LargeAnswersTest, AClientOnASlowLinkIsNotEnded) {
  // 20 Mbit/s.
  for (int second = 0; second < 12; ++second) {
    ASSERT_TRUE(Take(5 << 19)) << second;
    Look();
  }
  EXPECT_TRUE(Take(2 << 20)) << "the rest";
}

TEST_F(LargeAnswersTest, AClientThatStopsIsEndedSoonHoweverMuchItTookBefore) {
  ASSERT_TRUE(Take(22 << 20));
  for (int second = 0; second < 5; ++second) Look();
  clock_.Advance(5 * StallWatch::kPeriod);
  peer_->ReadToEnd(1);
}

TEST_F(LargeAnswersTest, AClientThatTakesATrickleIsEnded) {
  // 8 Mbit/s: half of every second behind.
  bool taken = true;
  for (int second = 0; second < 30 && taken; ++second) {
    taken = Take(1 << 20);
    clock_.Advance(StallWatch::kPeriod);
    if (second < 8) clock_.AwaitWaiterAnew();
  }
  if (taken) peer_->ReadToEnd(1);  // the watch may be behind
}

}  // namespace
}  // namespace pleiad
