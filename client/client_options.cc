#include "client/client_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pleiad::client {
namespace {

absl::Status Positive(const char* name, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", absl::FormatDuration(value), ": must be positive"));
}

absl::Status CheckTls(const TlsOptions& tls) {
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError(tls.key_file.empty()
                                          ? absl::StrCat("tls.cert_file ", tls.cert_file, ": needs its tls.key_file")
                                          : absl::StrCat("tls.key_file ", tls.key_file, ": needs its tls.cert_file"));
  }
  if (tls.reload_interval >= absl::Seconds(1) && tls.reload_interval <= absl::Hours(24)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tls.reload_interval ", absl::FormatDuration(tls.reload_interval), ": must be 1 s to 24 h"));
}

bool IsLocal(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "[::1]:");
}

}  // namespace

absl::Status ClientOptions::Validate() const {
  if (address.empty()) return absl::InvalidArgumentError("address \"\": must be HOST:PORT or unix:PATH");
  const bool printable =
      std::all_of(affinity_key.begin(), affinity_key.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable || affinity_key.size() > 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("affinity_key of ", affinity_key.size(), " bytes: must be printable ASCII, at most 128 bytes"));
  }
  if (absl::Status s = Positive("connect_timeout", connect_timeout); !s.ok()) return s;
  if (tls.has_value() && absl::StartsWith(address, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat("tls: Unix sockets are plaintext, and address is ", address));
  }
  if (tls.has_value()) {
    if (absl::Status s = CheckTls(*tls); !s.ok()) return s;
  } else if (!token_file.empty() && !IsLocal(address)) {
    return absl::InvalidArgumentError(absl::StrCat("token_file ", token_file, ": needs tls with address ", address,
                                                   ": tokens are not sent in plaintext beyond loopback"));
  }
  if (absl::Status s = Positive("rpc_timeout", rpc_timeout); !s.ok()) return s;
  return Positive("release_timeout", release_timeout);
}

absl::Status StreamOptions::Validate() const {
  if (reconnect_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reconnect_timeout ", absl::FormatDuration(reconnect_timeout), ": must not be negative"));
  }
  if (absl::Status s = Positive("initial_backoff", initial_backoff); !s.ok()) return s;
  if (max_backoff < initial_backoff) {
    return absl::InvalidArgumentError(absl::StrCat("max_backoff ", absl::FormatDuration(max_backoff),
                                                   ": must not be below initial_backoff ",
                                                   absl::FormatDuration(initial_backoff)));
  }
  return absl::OkStatus();
}

}  // namespace pleiad::client
