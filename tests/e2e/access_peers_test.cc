// Mutual TLS, and peers that never shake hands, beside a client that works.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "tests/e2e/access_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

class AccessPeers : public ::testing::Test {
 public:
  static UniqueFd DialTo(InProcessServer& server) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(server.server().addresses().addresses.at(1).port);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }

 protected:
  AccessPeers()
      : server_(fixture_.Start([this](ServerFlags& flags) {
          fixture_.UseTls(flags);
          flags.access.tls_client_ca = clients_.cert();
        })),
        address_(AccessFixture::PortOf(*server_)) {}

  grpc::StatusCode CodeAs(const CertificatePaths& own) {
    return CodeOf(ChannelAs(address_, {.ca = fixture_.authority.cert(), .own = own}), kReflection);
  }
  UniqueFd Dial() const { return DialTo(*server_); }

  const AccessFixture fixture_;
  const CertificateAuthority clients_{fixture_.folder.path(), "clients"};
  const CertificatePaths good_ = clients_.Issue("engine");
  std::unique_ptr<InProcessServer> server_;
  const std::string address_;
};

TEST_F(AccessPeers, NoCertificateAWrongOneAndAnExpiredOneAreRefused) {
  EXPECT_EQ(CodeAs({}), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeAs(fixture_.authority.Issue("stranger")), grpc::StatusCode::UNAVAILABLE) << "of another authority";
  EXPECT_EQ(CodeAs(clients_.Issue("late", Validity::kExpired)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(ChannelAs(address_, {}), kReflection), grpc::StatusCode::UNAVAILABLE) << "plaintext";
  EXPECT_EQ(CodeAs(good_), grpc::StatusCode::OK);
}

TEST_F(AccessPeers, AClientTakesUpItsReplacedCertificate) {
  client::ClientOptions options = fixture_.OptionsFor(*server_);
  options.tls->cert_file = good_.cert;
  options.tls->key_file = good_.key;
  options.tls->reload_interval = absl::Seconds(1);
  auto client = client::Client::Connect(options);
  ASSERT_THAT(client, IsOk());
  // Another server takes the address, for clients of the other authority alone.
  server_.reset();
  server_ = fixture_.Start([this](ServerFlags& flags) {
    fixture_.UseTls(flags);
    flags.listen.back() = address_;
    flags.access.tls_client_ca = fixture_.authority.cert();
  });
  EXPECT_THAT(client->Health(), FailsWith(absl::StatusCode::kUnavailable, ""));
  const CertificatePaths next = fixture_.authority.Issue("engine");
  ASSERT_EQ(next.cert, good_.cert);
  while (!client->Health().ok()) {
  }
}

TEST_F(AccessPeers, GarbageAndSlowHandshakesLeaveTheServerServing) {
  std::mt19937 random(7);
  // A ClientHello's record header that promises more than comes; HTTP/2 in plaintext; nothing; noise.
  const std::vector<std::string> beginnings{std::string("\x16\x03\x01\x02\x00\x01\x00", 7),
                                            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "GET / HTTP/1.1\r\n\r\n"};
  std::vector<UniqueFd> peers;
  for (int i = 0; i < 200; ++i) {
    peers.push_back(Dial());
    std::string bytes = beginnings[static_cast<size_t>(i) % beginnings.size()];
    if (i % 5 == 4) {
      for (int n = 0; n < 300; ++n) bytes.push_back(static_cast<char>(random()));
    }
    (void)::send(peers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 50 == 49) {
      EXPECT_EQ(CodeAs(good_), grpc::StatusCode::OK) << i;
    }
  }
  client::ClientOptions options = fixture_.OptionsFor(*server_);
  options.tls->cert_file = good_.cert;
  options.tls->key_file = good_.key;
  auto client = client::Client::Connect(options);
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->OpenSequence(), IsOk());
  // What speaks no TLS is sent away.
  char byte = 0;
  while (::recv(peers[1].get(), &byte, 1, 0) > 0) {
  }
}

TEST(Handshakes, APeerThatDoesNotEndItsHandshakeIsSentAway) {
  const AccessFixture fixture;
  for (const bool tls : {true, false}) {
    const auto server = fixture.Start([&](ServerFlags& flags) {
      if (tls) fixture.UseTls(flags);
      flags.access.handshake_timeout = absl::Milliseconds(50);
    });
    for (const std::string& beginning : {std::string(), tls ? std::string("\x16\x03\x01\x02\x00\x01\x00", 7)
                                                            : std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
      SCOPED_TRACE(absl::StrCat(tls ? "TLS" : "plaintext", ", ", beginning.size(), " bytes"));
      const UniqueFd peer = AccessPeers::DialTo(*server);
      ASSERT_EQ(::send(peer.get(), beginning.data(), beginning.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(beginning.size()));
      // Longer than it may take, and less than gRPC's own limit or the one that this server has unless told.
      const timeval patience{.tv_sec = 15, .tv_usec = 0};
      ASSERT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
      char byte = 0;
      ssize_t got = 0;
      while ((got = ::recv(peer.get(), &byte, 1, 0)) > 0) {
      }
      EXPECT_TRUE(got == 0 || errno == ECONNRESET) << std::strerror(errno);
    }
  }
  EXPECT_EQ(AccessFlags().handshake_timeout, absl::Seconds(20));
}

}  // namespace
}  // namespace pleiad::testing
