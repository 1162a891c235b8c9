#include "server/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

UniqueFd Bind(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(fd.get(), 1), 0);
  return fd;
}

TEST(ListenAddress, LocalIsWhatOnlyThisMachineReaches) {
  for (const char* text : {"127.0.0.1:1", "127.1.2.3:0", "localhost:5", "[::1]:5", "unix:/tmp/x"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_TRUE(address->is_local()) << text;
    EXPECT_EQ(address->ToString(), text);
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host.example:1", "127.0.0.1.example:1"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_FALSE(address->is_local()) << text;
  }
}

TEST(ListenAddress, RefusesWhatIsNoAddress) {
  for (const char* text : {"", ":1", "host", "host:", "host:x", "host:65536", "::1:5", "unix:"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
  EXPECT_FALSE(ParseListenAddress("unix:" + std::string(200, 'x')).ok());
}

TEST(WhyNotListen, SaysWhatTheSystemSays) {
  const auto why = [](const std::string& text) { return WhyNotListen(*ParseListenAddress(text)); };
  const std::string path = "/tmp/pleiad-why-" + std::to_string(::getpid());
  EXPECT_EQ(why("unix:" + path), "");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(why("unix:" + path + "/absent/socket"), ::strerror(ENOENT));
  {
    const UniqueFd listening = Bind(path);
    EXPECT_EQ(why("unix:" + path), ::strerror(EADDRINUSE));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  std::filesystem::remove(path);
  EXPECT_EQ(why("127.0.0.1:0"), "");
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(why("127.0.0.1:" + std::to_string(ntohs(address.sin_port))), ::strerror(EADDRINUSE));
  EXPECT_EQ(why("192.0.2.1:1"), ::strerror(EADDRNOTAVAIL));
}

TEST(StaleSocket, IsRemovedOnlyWhenNobodyListens) {
  const std::string path = "/tmp/pleiad-stale-" + std::to_string(::getpid());
  EXPECT_TRUE(RemoveStaleSocket(path).ok()) << "nothing there";
  {
    const UniqueFd listening = Bind(path);
    EXPECT_EQ(RemoveStaleSocket(path).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(RemoveStaleSocket(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "data";
  EXPECT_EQ(RemoveStaleSocket(path).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace pleiad
