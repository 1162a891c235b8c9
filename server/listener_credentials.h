// What gRPC asks of a connection and of each call before the server sees it: a TLS handshake, a token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "grpc/grpc_security.h"
#include "grpcpp/security/server_credentials.h"
#include "server/certificate_files.h"
#include "server/rpc_counters.h"
#include "server/token_file.h"

namespace pleiad {

// Made of gRPC's C parts: its C++ library has neither certificates that are looked for at each handshake nor tokens on
// plaintext listeners. Outlives the servers whose ports it opens.
class ListenerCredentials final : public grpc::ServerCredentials {
 public:
  // `certificates` null: plaintext. `tokens` null: no token is asked for; else a call without a good one ends with
  // UNAUTHENTICATED before its message is read, and is counted; calls of grpc.health.v1.Health need none. `tokens` and
  // `counters` outlive this.
  ListenerCredentials(std::shared_ptr<CertificateFiles> certificates, TokenFile* tokens, RpcCounters* counters)
      : certificates_(std::move(certificates)), tokens_(tokens), counters_(counters) {}

  // Dies: tokens are all there is.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>& processor) override;

 private:
  // Which certificate the connections of one port get.
  struct Cursor {
    CertificateFiles* files;
    Mutex mutex;
    uint64_t seen ABSL_GUARDED_BY(mutex) = 0;
  };

  int AddPortToServer(const std::string& address, grpc_server* server) override;
  grpc_server_credentials* MakeTls();
  static grpc_ssl_certificate_config_reload_status Fetch(void* cursor, grpc_ssl_server_certificate_config** config);
  static void CheckToken(void* self, grpc_auth_context* context, const grpc_metadata* metadata, size_t count,
                         grpc_process_auth_metadata_done_cb done, void* user_data);

  const std::shared_ptr<CertificateFiles> certificates_;
  TokenFile* const tokens_;
  RpcCounters* const counters_;
  std::vector<std::unique_ptr<Cursor>> cursors_;  // one for each port
};

}  // namespace pleiad
