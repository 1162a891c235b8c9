// Settings of a Client.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace pleiad::client {

// PEM files. Files that are replaced are read again; connections that are open stay as they are.
struct TlsOptions {
  std::string ca_file = {};    // authorities of the server; empty: the system's
  std::string cert_file = {};  // what the client shows, with its key; both or none
  std::string key_file = {};
  std::string server_name = {};  // that the server's certificate must have; empty: the address's host
  absl::Duration reload_interval = absl::Seconds(10);  // how often the files are looked at; at least 1 s
};

struct ClientOptions {
  std::string address = "127.0.0.1:50051";  // "HOST:PORT" or "unix:PATH"
  // Metadata `x-pleiad-affinity` of every call, for what balances by it: printable ASCII, at most 128 bytes. Empty:
  // none.
  std::string affinity_key = {};
  absl::Duration connect_timeout = absl::Seconds(10);  // for the first answer, loading included
  absl::Duration rpc_timeout = absl::Seconds(30);      // of each unary call
  absl::Duration release_timeout = absl::Seconds(5);   // of a release nobody waits for
  std::optional<TlsOptions> tls = {};                  // absent: plaintext
  // A file with the token that every call shows, read again when it changes; empty: none is shown. Others than owner
  // and group must not be able to read it. Over TLS, loopback or a Unix socket.
  std::string token_file = {};

  // InvalidArgument naming the member.
  absl::Status Validate() const;
};

struct StreamOptions {
  // How long steps wait for a stream that works again, counted from the last reply or the break; 0: a broken stream
  // fails its steps.
  absl::Duration reconnect_timeout = absl::Seconds(10);
  // Pauses between attempts double from the first to the second value.
  absl::Duration initial_backoff = absl::Milliseconds(10);
  absl::Duration max_backoff = absl::Seconds(1);

  absl::Status Validate() const;
};

}  // namespace pleiad::client
