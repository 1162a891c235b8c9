#include "server/listener_credentials.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace pleiad {
namespace {

absl::string_view Text(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

void Count(absl::string_view path, RpcCounters* counters) {
  if (!absl::ConsumePrefix(&path, "/pleiad.v1.Ple/")) return;
  for (size_t rpc = 0; rpc < kRpcNames.size(); ++rpc) {
    if (path == kRpcNames[rpc]) counters->CountRpc(static_cast<Rpc>(rpc), absl::StatusCode::kUnauthenticated);
  }
}

}  // namespace

void ListenerCredentials::SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) {
  std::abort();
}

int ListenerCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  grpc_server_credentials* credentials =
      certificates_ == nullptr ? grpc_insecure_server_credentials_create() : MakeTls();
  if (tokens_ != nullptr) {
    grpc_server_credentials_set_auth_metadata_processor(credentials,
                                                        {.process = CheckToken, .destroy = nullptr, .state = this});
  }
  const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
  grpc_server_credentials_release(credentials);
  return port;
}

grpc_server_credentials* ListenerCredentials::MakeTls() {
  cursors_.emplace_back(new Cursor{.files = certificates_.get(), .mutex = {}, .seen = 0});
  const bool mutual = !certificates_->Current().certificate->client_ca.empty();
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                 : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
          Fetch, cursors_.back().get()));
}

grpc_ssl_certificate_config_reload_status ListenerCredentials::Fetch(void* cursor,
                                                                     grpc_ssl_server_certificate_config** config) {
  auto* port = static_cast<Cursor*>(cursor);
  const CertificateFiles::Version now = port->files->Current();
  MutexLock lock(&port->mutex);
  if (now.number == port->seen) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  port->seen = now.number;
  const Certificate& certificate = *now.certificate;
  const grpc_ssl_pem_key_cert_pair pair{.private_key = certificate.key.c_str(),
                                        .cert_chain = certificate.chain.c_str()};
  // gRPC 1.51 aborts without authorities, and uses none where clients are not asked for certificates.
  const std::string& authorities = certificate.client_ca.empty() ? certificate.chain : certificate.client_ca;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

void ListenerCredentials::CheckToken(void* self, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                                     grpc_process_auth_metadata_done_cb done, void* user_data) {
  const auto* credentials = static_cast<ListenerCredentials*>(self);
  absl::string_view path, authorization;
  size_t given = 0;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = Text(metadata[i].key);
    if (key == ":path") path = Text(metadata[i].value);
    if (key != "authorization") continue;
    authorization = Text(metadata[i].value);
    ++given;
  }
  if (absl::StartsWith(path, "/grpc.health.v1.Health/") ||
      (given == 1 && credentials->tokens_->NameOf(authorization))) {
    return done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
  }
  Count(path, credentials->counters_);
  credentials->counters_->CountTokenRefusal(given != 1 ? TokenRefusal::kMissing : TokenRefusal::kUnknown);
  done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_UNAUTHENTICATED,
       given != 1 ? "metadata authorization: must be there once, Bearer and a token of the server's"
                  : "metadata authorization: the server knows no such token");
}

}  // namespace pleiad
