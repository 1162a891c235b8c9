// How often clients may ask for a sign of life.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/internal/raw_stream.h"
#include "tests/server/test_server.h"
#include "tests/support/raw_http2.h"

namespace pleiad {
namespace {

using testing::RawHttp2;

TEST(Keepalive, TheClientAsksNoMoreThanTheServerAllows) {
  EXPECT_GE(client::internal::kKeepaliveTime, 2 * kMinPingInterval);
  EXPECT_LE(2 * kMinPingInterval, std::chrono::seconds(10)) << "the least that gRPC clients are let to";
}

TEST(Keepalive, AClientWithoutCallsMayAskAndOneThatAsksTooOftenIsSentAway) {
  TestServer server;
  RawHttp2 peer(server.server().addresses().addresses.front().ToString(), 65535);
  // Twice too early is forgiven.
  for (int i = 0; i < 3; ++i) {
    peer.Ping();
    const RawHttp2::Frame answer = peer.Read();
    EXPECT_EQ(answer.type, RawHttp2::kPing);
    EXPECT_EQ(answer.payload, std::string(8, 'p'));
  }
  RawHttp2::Frame frame;
  do {
    peer.Ping();
    frame = peer.Read();
  } while (frame.type == RawHttp2::kPing);
  ASSERT_EQ(frame.type, RawHttp2::kGoAway);
  EXPECT_THAT(frame.payload, ::testing::HasSubstr("too_many_pings"));
}

}  // namespace
}  // namespace pleiad
