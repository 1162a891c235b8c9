// Streams whose clients do not read.
#include <gtest/gtest.h>

#include <memory>
#include <string>

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
  clock_.Advance(ReadPatience(1000));
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 7u);
  one->ReadToEnd(1);
  two->ReadToEnd(1);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
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

}  // namespace
}  // namespace pleiad
