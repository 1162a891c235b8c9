#include "server/access_flags.h"

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "server/flag_values.h"

namespace pleiad {
namespace {

absl::Status Refuse(absl::string_view flag, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, value.empty() ? "" : " ", value, ": ", rule));
}

absl::StatusOr<uint32_t> ParseMode(const std::string& text) {
  uint32_t mode = 0;
  bool octal = !text.empty() && text.size() <= 4;
  for (const char digit : text) {
    octal = octal && digit >= '0' && digit <= '7';
    mode = mode * 8 + static_cast<uint32_t>(digit - '0');
  }
  if (!octal || mode > 0777) return Refuse("socket-mode", text, "must be an octal mode up to 0777, as 0660");
  return mode;
}

absl::Status CheckTls(const AccessFlags& flags) {
  if (flags.tls_cert.empty() != flags.tls_key.empty()) {
    return flags.tls_key.empty() ? Refuse("tls-cert", flags.tls_cert, "needs its key in --tls-key")
                                 : Refuse("tls-key", flags.tls_key, "needs its certificate in --tls-cert");
  }
  if (!flags.tls_client_ca.empty() && flags.tls_cert.empty()) {
    return Refuse("tls-client-ca", flags.tls_client_ca, "needs --tls-cert and --tls-key");
  }
  return absl::OkStatus();
}

absl::Status CheckPlaintext(const AccessFlags& flags, const std::vector<ListenAddress>& listen) {
  if (!flags.tls_cert.empty()) return absl::OkStatus();
  for (const ListenAddress& address : listen) {
    if (address.is_local()) continue;
    if (!flags.auth_tokens.empty()) {
      return Refuse("auth-tokens", flags.auth_tokens,
                    absl::StrCat("needs --tls-cert and --tls-key with --listen ", address.ToString(),
                                 ": tokens are not sent in plaintext beyond loopback"));
    }
    if (!flags.allow_plaintext) {
      return Refuse("listen", address.ToString(),
                    "plaintext beyond loopback needs --allow-plaintext, TLS needs --tls-cert and --tls-key");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddAccessOptions(CLI::App& app, RawAccessFlags* raw) {
  AccessFlags& flags = raw->flags;
  app.add_option("--tls-cert", flags.tls_cert,
                 "PEM certificate chain of all HOST:PORT listeners, read again when it changes [plaintext]")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.tls_key, "PEM key of --tls-cert, which others cannot read")->type_name("FILE");
  app.add_option("--tls-client-ca", flags.tls_client_ca,
                 "PEM authorities: clients of TLS must show a certificate of theirs [none is asked for]")
      ->type_name("FILE");
  app.add_flag("--allow-plaintext", flags.allow_plaintext, "HOST:PORT listeners without TLS beyond loopback");
  app.add_option(
         "--auth-tokens", flags.auth_tokens,
         "Lines of NAME TOKEN, which others cannot read, read again when it changes: every RPC but health needs "
         "one [no token is asked for]")
      ->type_name("FILE");
  app.add_option("--socket-mode", raw->socket_mode, "Who may connect to unix: listeners: their mode")
      ->type_name("OCTAL")
      ->capture_default_str();
  app.add_option("--health-listen", flags.health_listen,
                 "grpc.health.v1.Health alone, in plaintext and without a token, for probes [nowhere]")
      ->type_name("HOST:PORT");
  app.add_option("--client-max-sequences", flags.client_max_sequences,
                 "Sequences that one client (token, else certificate, else host) has open; 0: any")
      ->type_name("N")
      ->check(CLI::Range(0u, 1u << 24))
      ->capture_default_str();
  app.add_option("--client-max-requests", flags.client_max_requests, "Requests that one client has in flight; 0: any")
      ->type_name("N")
      ->check(CLI::Range(0u, 1u << 24))
      ->capture_default_str();
  app.add_option("--client-max-bytes", raw->client_max_bytes, "Bytes that one client has in flight; 0: any")
      ->type_name("SIZE")
      ->capture_default_str();
}

absl::StatusOr<AccessFlags> ReadAccessFlags(const RawAccessFlags& raw, const std::vector<ListenAddress>& listen) {
  AccessFlags flags = raw.flags;
  PLEIAD_RETURN_IF_ERROR(CheckTls(flags));
  PLEIAD_RETURN_IF_ERROR(CheckPlaintext(flags, listen));
  PLEIAD_ASSIGN_OR_RETURN(flags.socket_mode, ParseMode(raw.socket_mode));
  if (raw.client_max_bytes != "0") {
    const absl::StatusOr<uint64_t> size = ParseSize(raw.client_max_bytes);
    if (!size.ok()) return Refuse("client-max-bytes", "", size.status().message());
    flags.client_max_bytes = *size;
  }
  if (!flags.health_listen.empty()) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(flags.health_listen);
    if (!address.ok()) return Refuse("health-listen", "", address.status().message());
    if (address->is_unix()) return Refuse("health-listen", flags.health_listen, "must be HOST:PORT");
  }
  return flags;
}

}  // namespace pleiad
