// Metrics pages over sockets of the test's own.
#include "client/cli/scrape.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "core/base/unique_fd.h"

namespace pleiad::cli {
namespace {

using ::testing::HasSubstr;

class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 4), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  }

  const std::string& address() const { return address_; }
  UniqueFd Accept() { return UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

 private:
  UniqueFd fd_;
  std::string address_;
};

bool Send(const UniqueFd& fd, const std::string& bytes) {
  return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

int RunTop(const std::vector<const char*>& flags) {
  std::vector<const char*> argv = {"pleiad", "top", "--once", "--interval", "100ms"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return Main(static_cast<int>(argv.size()), argv.data());
}

TEST(Scrape, APageInPiecesIsOnePage) {
  Listener listener;
  std::thread server([&listener] {
    const UniqueFd fd = listener.Accept();
    // What is unread when the connection is closed would reset it.
    std::string request;
    char next;
    while (request.find("\r\n\r\n") == std::string::npos && ::recv(fd.get(), &next, 1, 0) == 1) request += next;
    EXPECT_EQ(request, "GET /metrics HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(Send(fd, "HTTP/1.0 200 OK\r\n\r\n"));
    EXPECT_TRUE(Send(fd, "a 1\nb 2\n"));
  });
  const absl::StatusOr<double> value = ScrapeMetric(listener.address(), "b");
  server.join();
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, 2);
}

TEST(Scrape, AServerThatTakesTheConnectionAndHangsIsLeftInTime) {
  const Listener listener;  // the kernel takes it
  EXPECT_EQ(ScrapePage(listener.address(), absl::Milliseconds(30)).status(),
            absl::DeadlineExceededError("metrics at " + listener.address() + ": no answer within 30ms"));
}

TEST(Scrape, APageThatNeverEndsIsLeftInTime) {
  Listener listener;
  std::thread server([&listener] {
    const UniqueFd fd = listener.Accept();
    while (Send(fd, "#")) {
    }
  });
  const absl::Status status = ScrapePage(listener.address(), absl::Milliseconds(30)).status();
  server.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(Scrape, NobodyThereIsSaidAtOnce) {
  std::string address;
  {
    const Listener gone;
    address = gone.address();
  }
  EXPECT_EQ(ScrapePage(address, absl::Hours(1)).status(),
            absl::UnavailableError("metrics at " + address + ": nothing answers"));
}

TEST(Scrape, AddressesAreHostAndPort) {
  for (const char* good : {"a:1", "127.0.0.1:9464", "[::1]:65535", "pleiad-0.pleiad:9464"}) {
    EXPECT_TRUE(IsMetricsAddress(good)) << good;
  }
  for (const char* bad : {"", "foo", ":1", "a:", "a:0", "a:65536", "a:http", "a:+1", "a: 1", "::1:9464", "[::1]",
                          "[]:1", "[a:1", "http://a:1", "a b:1"}) {
    EXPECT_FALSE(IsMetricsAddress(bad)) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(ScrapePage(bad, absl::Seconds(1)).status())) << bad;
  }
}

TEST(Scrape, TopShowsWhichServerHangs) {
  const Listener hung;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunTop({"--metrics", hung.address().c_str()}), kExitFailed);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no answer within 100ms"));
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr(hung.address() + " no answer "));
}

TEST(Scrape, WhatIsNoAddressIsABadFlag) {
  for (const char* metrics : {"foo", "127.0.0.1:9464,foo"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(RunTop({"--metrics", metrics}), kExitBadFlags);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("--metrics: 'foo': must be HOST:PORT, as 127.0.0.1:9464"));
  }
  const char* bench[] = {"pleiad", "bench", "--metrics", "foo"};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Main(4, bench), kExitBadFlags);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--metrics: 'foo': must be HOST:PORT"));
}

}  // namespace
}  // namespace pleiad::cli
