#include "client/client_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace pleiad::client {
namespace {

absl::Status Positive(const char* name, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", absl::FormatDuration(value), ": must be positive"));
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
