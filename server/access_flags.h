// Flags of who may call and how: TLS, tokens, modes of sockets, health for probes, limits of each client.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/listener.h"

namespace CLI {
class App;
}

namespace pleiad {

struct AccessFlags {
  std::string tls_cert, tls_key;  // PEM files for all HOST:PORT listeners; empty: plaintext
  std::string
      tls_client_ca;  // PEM file of the authorities whose clients are let in; empty: no certificate is asked for
  bool allow_plaintext = false;  // beyond loopback
  std::string auth_tokens;       // file of tokens; empty: none is asked for
  uint32_t socket_mode = 0660;   // of unix: listeners
  std::string health_listen;     // health alone, plaintext; empty: nowhere
  // A connection that has not shaken hands by then is closed. Of no command-line flag: tests shorten it.
  absl::Duration handshake_timeout = absl::Seconds(20);
  // Of one client; 0: no limit of its own.
  uint32_t client_max_sequences = 0;
  uint32_t client_max_requests = 0;
  uint64_t client_max_bytes = 0;
};

// As typed.
struct RawAccessFlags {
  AccessFlags flags;
  std::string socket_mode = "0660";
  std::string client_max_bytes = "0";
};

// Options that write to `raw`, which outlives the parsing.
void AddAccessOptions(CLI::App& app, RawAccessFlags* raw);

// Opens no file. InvalidArgument naming flag, value and rule: values of no use, flags that need another, and plaintext
// where it may be read on the way.
absl::StatusOr<AccessFlags> ReadAccessFlags(const RawAccessFlags& raw, const std::vector<ListenAddress>& listen);

}  // namespace pleiad
