// Addresses the server listens on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

struct ListenAddress {
  std::string host;  // as written, brackets of IPv6 included; empty for unix
  uint16_t port = 0;
  std::string unix_path;

  bool is_unix() const { return !unix_path.empty(); }
  // Reachable from this machine only: unix:, 127.0.0.0/8, [::1], localhost.
  bool is_local() const;
  // As gRPC and the ready line write it.
  std::string ToString() const;
};

// HOST:PORT, [IPV6]:PORT or unix:PATH. InvalidArgument naming the address and the rule.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Why nobody can listen there now, as the system says; empty when somebody can. Tries it, for a moment.
std::string WhyNotListen(const ListenAddress& address);

// Makes way for a socket at `path`: a socket that nobody listens on is removed. FailedPrecondition when somebody
// does, or when something else lies there.
absl::Status RemoveStaleSocket(const std::string& path);

}  // namespace pleiad
