// pleiad-server as a process under signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/e2e/in_process_server.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/process/server_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest() { WriteCheckpoint({}, model_.path()); }
  std::string address() const { return "unix:" + (dir_ / "socket"); }

  TempDir model_, dir_, state_;
};

// The thread that ends the server may be ahead of the one that took the signal.
TEST_F(SignalsTest, AStopWithoutPatienceRightAfterTheStartEndsInOrderAndKeepsTheWarmRows) {
  const std::vector<std::string> flags = {
      "--table",         "cached", "--cache-bytes", "64KiB", "--state-dir", state_.path(),
      "--drain-timeout", "0s",     "--threads",     "1"};
  for (int i = 0; i < 40; ++i) {
    ServerProcess server(model_.path(), address(), flags);
    ASSERT_TRUE(server.WaitUntilReady()) << server.child.DrainError();
    server.child.Signal(SIGTERM);
    ASSERT_EQ(server.child.Wait(), 0) << "start " << i;
    ASSERT_TRUE(std::filesystem::remove(state_ / "warm-rows")) << "start " << i;
  }
}

TEST_F(SignalsTest, AHangupEndsNothing) {
  ServerProcess server(model_.path(), address(), {});
  ASSERT_TRUE(server.WaitUntilReady());
  server.child.Signal(SIGHUP);
  EXPECT_TRUE(server.child.ReadErrorUntil("SIGHUP: nothing to do").has_value());
  EXPECT_TRUE(InProcessServer::ConnectTo(address()).OpenSequence().ok());
  server.child.Signal(SIGTERM);
  EXPECT_EQ(server.child.Wait(), 0);
}

}  // namespace
}  // namespace pleiad::testing
