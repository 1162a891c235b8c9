// Messages that come in, and the quota that bounds them.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/server/test_server.h"
#include "tests/support/raw_http2.h"

namespace pleiad {
namespace {

using testing::RawHttp2;

// gRPC ends streams in turn, those of clients that do nothing wrong too.
TEST(Quota, AClientWhoseStreamIsEndedForItsMemoryOpensAnotherAndSendsItsStepAgain) {
  ServerFlags flags = TestFlags();
  flags.max_tokens = 300'000;           // 14 MiB; gRPC takes 28
  flags.max_inflight_bytes = 32 << 20;  // the quota too
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, flags);
  const std::string address = server.server().addresses().addresses.front().ToString();
  client::ClientOptions options;
  options.address = address;
  auto client = client::Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto sequence = client->OpenSequence();
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const auto stream = client->OpenStream({.reconnect_timeout = absl::InfiniteDuration()});
  client::Step step;
  step.segments.push_back({.sequence = &*sequence, .num_tokens = 1});
  step.token_ids = {1};
  step.highway.zeros = true;
  std::future<absl::StatusOr<client::StepResult>> result = (*stream)->Submit(step);
  server.engine().WaitForHeld(1);
  // The step that is held is never answered: only one that is sent again is.
  server.engine().SetMode(FakeEngine::Mode::kAnswerAtOnce);
  const std::string message(20 << 20, 'x');
  std::vector<std::unique_ptr<RawHttp2>> peers;
  for (int i = 0; i < 12; ++i) {
    peers.push_back(std::make_unique<RawHttp2>(address, 65535));
    peers.back()->Call(1, "/pleiad.v1.Ple/ForwardStream");
    (void)peers.back()->SendPart(1, message, 8 << 20);
  }
  server.engine().WaitForCancels(1);
  peers.clear();
  const absl::StatusOr<client::StepResult> got = result.get();
  EXPECT_TRUE(got.ok()) << got.status();
  EXPECT_GE(server.engine().submitted(), 2u);
}

}  // namespace
}  // namespace pleiad
