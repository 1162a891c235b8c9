// A server with certificates and tokens, and any client of it.
#pragma once

#include <memory>
#include <string>

#include "client/client.h"
#include "grpcpp/grpcpp.h"
#include "tests/e2e/in_process_server.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

inline constexpr char kToken[] = "token-of-the-tests-0123";
inline constexpr char kOtherToken[] = "other-token-of-the-tests";

// What the gRPC library of a client is told; empty: none.
struct Shown {
  std::string ca;             // PEM file of the server's authority; empty: plaintext
  CertificatePaths own = {};  // certificate of the client
  std::string token = {};
};

// A channel of its own.
std::shared_ptr<grpc::Channel> ChannelAs(const std::string& address, const Shown& shown);

// How any RPC ends that sends one empty message.
grpc::StatusCode CodeOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& token = "");

// The folder, the checkpoint, the server's certificate, and a file with kToken of "engine".
class AccessFixture {
 public:
  AccessFixture();

  // Listens on its Unix socket and a loopback port.
  std::unique_ptr<InProcessServer> Start(const std::function<void(ServerFlags&)>& change) const;
  // With the certificate.
  void UseTls(ServerFlags& flags) const;
  // "127.0.0.1:PORT" of the second listener.
  static std::string PortOf(InProcessServer& server) { return server.server().addresses().addresses.at(1).ToString(); }
  // Of the client library, over TLS.
  client::ClientOptions OptionsFor(InProcessServer& server) const;

  const TempDir folder;
  const std::string model;
  const CertificateAuthority authority;
  const CertificatePaths certificate;
  const std::string tokens;      // for --auth-tokens
  const std::string token_file;  // for the client
};

}  // namespace pleiad::testing
