#include "server/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

// The manager's end: a datagram socket.
class Manager {
 public:
  Manager() : path_(dir_.path() + "/notify"), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  const std::string& path() const { return path_; }
  // Blocks until there is one.
  std::string Next() { return Receive(0); }
  // Empty when there is none now.
  std::string Poll() { return Receive(MSG_DONTWAIT); }

 private:
  std::string Receive(int flags) {
    char buffer[64];
    const ssize_t length = ::recv(socket_.get(), buffer, sizeof(buffer), flags);
    return length < 0 ? "" : std::string(buffer, static_cast<size_t>(length));
  }

  testing::TempDir dir_;
  const std::string path_;
  const UniqueFd socket_;
};

class ServiceManagerTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServiceManager> Create(Environment environment = {}) {
    environment.emplace("NOTIFY_SOCKET", manager_.path());
    auto created = ServiceManager::Create(environment, &clock_);
    EXPECT_TRUE(created.ok()) << created.status();
    return *std::move(created);
  }
  std::string Error(const Environment& environment) {
    return std::string(ServiceManager::Create(environment, &clock_).status().message());
  }

  FakeClock clock_;
  Manager manager_;
};

TEST_F(ServiceManagerTest, IsToldOfTheStartAndTheEnd) {
  const auto service = Create();
  service->Ready();
  EXPECT_EQ(manager_.Next(), "READY=1");
  service->Stopping();
  EXPECT_EQ(manager_.Next(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, IsNoneWithoutASocket) {
  EXPECT_EQ(*ServiceManager::Create({}, &clock_), nullptr);
  EXPECT_EQ(*ServiceManager::Create({{"WATCHDOG_USEC", "x"}}, &clock_), nullptr);
}

TEST_F(ServiceManagerTest, WrongVariablesAreRefusedByName) {
  EXPECT_THAT(Error({{"NOTIFY_SOCKET", "relative"}}), HasSubstr("NOTIFY_SOCKET 'relative': must be a path from the"));
  EXPECT_THAT(Error({{"NOTIFY_SOCKET", "/nonexistent/socket"}}), HasSubstr("'/nonexistent/socket': must be a socket"));
  EXPECT_THAT(Error({{"NOTIFY_SOCKET", "/" + std::string(107, 'x')}}), HasSubstr("shorter than 108 bytes"));
  for (const char* wrong : {"0", "-1", "1s"}) {
    EXPECT_THAT(Error({{"NOTIFY_SOCKET", manager_.path()}, {"WATCHDOG_USEC", wrong}}),
                HasSubstr(absl::StrCat("WATCHDOG_USEC '", wrong, "': must be microseconds")));
  }
}

TEST_F(ServiceManagerTest, SignsOfLifeFollowTheCheckAndNotTheClock) {
  std::atomic<bool> lives{true};
  std::atomic<int> checks{0};
  const auto service = Create({{"WATCHDOG_USEC", "4000000"}, {"WATCHDOG_PID", absl::StrCat(::getpid())}});
  service->Watch([&] {
    ++checks;
    return lives ? absl::OkStatus() : absl::UnavailableError("stuck");
  });
  EXPECT_EQ(manager_.Next(), "WATCHDOG=1");
  clock_.AwaitWaiter();
  clock_.Advance(absl::Milliseconds(999));
  clock_.AwaitWaiterAnew();
  EXPECT_EQ(checks, 1);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(manager_.Next(), "WATCHDOG=1");
  clock_.AwaitWaiterAnew();

  lives = false;
  for (int i = 0; i < 8; ++i) {
    clock_.Advance(absl::Seconds(1));
    clock_.AwaitWaiterAnew();
  }
  EXPECT_EQ(checks, 10);
  EXPECT_EQ(manager_.Poll(), "");
}

TEST_F(ServiceManagerTest, AWatchdogOfAnotherProcessIsNoneOfOurs) {
  EXPECT_EQ(Create({{"WATCHDOG_USEC", "1000000"}, {"WATCHDOG_PID", "1"}})->watchdog(), absl::ZeroDuration());
  EXPECT_EQ(Create()->watchdog(), absl::ZeroDuration());
}

TEST(CheckLive, IsOkWhileTheServerAnswersAndNotWhenItHasStopped) {
  TestServer server;
  EXPECT_EQ(server.server().CheckLive(absl::Seconds(60)), absl::OkStatus());
  server.server().Terminate();
  server.server().Terminate();  // at once
  server.Wait();
  EXPECT_EQ(server.server().CheckLive(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable);
}

TEST(CheckLive, EndsWellBesideTheEndOfTheServer) {
  for (int round = 0; round < 20; ++round) {
    TestServer server;
    ASSERT_EQ(server.server().CheckLive(absl::Seconds(60)), absl::OkStatus());
    std::thread checks([&] {
      while (server.server().CheckLive(absl::Seconds(60)).ok()) {
      }
    });
    server.server().Terminate();
    server.server().Terminate();
    server.Wait();
    checks.join();
  }
}

TEST(CheckLive, IsOkWhileLoading) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  EXPECT_EQ(server.server().CheckLive(absl::Seconds(60)), absl::OkStatus());
}

}  // namespace
}  // namespace pleiad
