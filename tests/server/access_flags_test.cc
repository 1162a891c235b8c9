#include "server/access_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/flags.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<AccessFlags> Parse(std::vector<std::string> args) {
  args.insert(args.begin(), {"--model", "m"});
  const auto line = ParseCommandLine(args, {});
  if (!line.ok()) return line.status();
  return line->flags.access;
}

std::string Error(const std::vector<std::string>& args) {
  const auto flags = Parse(args);
  if (flags.ok()) return "";
  EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(flags.status().message());
}

TEST(AccessFlags, PlaintextBeyondLoopbackHasToBeAskedFor) {
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host.example:1"}) {
    EXPECT_THAT(Error({"--listen", address}),
                AllOf(HasSubstr("--listen " + std::string(address)), HasSubstr("--allow-plaintext")));
    EXPECT_EQ(Error({"--listen", address, "--allow-plaintext"}), "");
    EXPECT_EQ(Error({"--listen", address, "--tls-cert", "c", "--tls-key", "k"}), "");
  }
  for (const char* address : {"127.0.0.1:1", "[::1]:1", "localhost:1", "unix:s"}) {
    EXPECT_EQ(Error({"--listen", address}), "");
  }
  EXPECT_NE(Error({"--listen", "127.0.0.1:1", "--listen", "0.0.0.0:1"}), "") << "one of several";
}

TEST(AccessFlags, TokensAreNotSentInPlaintext) {
  EXPECT_THAT(Error({"--listen", "0.0.0.0:1", "--auth-tokens", "t", "--allow-plaintext"}),
              AllOf(HasSubstr("--auth-tokens t"), HasSubstr("0.0.0.0:1"), HasSubstr("--tls-cert")));
  EXPECT_EQ(Error({"--listen", "0.0.0.0:1", "--auth-tokens", "t", "--tls-cert", "c", "--tls-key", "k"}), "");
  EXPECT_EQ(Error({"--listen", "unix:s", "--listen", "127.0.0.1:1", "--auth-tokens", "t"}), "");
}

TEST(AccessFlags, ACertificateNeedsItsKeyAndClientAuthoritiesNeedBoth) {
  EXPECT_THAT(Error({"--tls-cert", "c"}), HasSubstr("--tls-cert c: needs its key in --tls-key"));
  EXPECT_THAT(Error({"--tls-key", "k"}), HasSubstr("--tls-key k"));
  EXPECT_THAT(Error({"--tls-client-ca", "a"}), HasSubstr("--tls-client-ca a"));
  EXPECT_EQ(Error({"--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"}), "");
}

TEST(AccessFlags, TheSocketModeIsOctal) {
  EXPECT_EQ(Parse({})->socket_mode, 0660u);
  EXPECT_EQ(Parse({"--socket-mode", "0600"})->socket_mode, 0600u);
  EXPECT_EQ(Parse({"--socket-mode", "666"})->socket_mode, 0666u);
  for (const char* bad : {"", "8", "0x1", "01000", "rw", "-1"}) {
    EXPECT_THAT(Error({"--socket-mode", bad}), HasSubstr("--socket-mode")) << bad;
  }
}

TEST(AccessFlags, HealthListensOnPortsAlone) {
  EXPECT_EQ(Parse({"--health-listen", "0.0.0.0:1"})->health_listen, "0.0.0.0:1");
  EXPECT_THAT(Error({"--health-listen", "unix:s"}), HasSubstr("--health-listen unix:s: must be HOST:PORT"));
  EXPECT_THAT(Error({"--health-listen", "host"}), HasSubstr("--health-listen"));
}

}  // namespace
}  // namespace pleiad
