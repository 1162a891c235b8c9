// Settings of a Client.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace pleiad::client {

struct ClientOptions {
  std::string address = "127.0.0.1:50051";  // "HOST:PORT" or "unix:PATH"
  // Metadata `x-pleiad-affinity` of every call, for what balances by it: printable ASCII, at most 128 bytes. Empty:
  // none.
  std::string affinity_key = {};
  absl::Duration connect_timeout = absl::Seconds(10);  // for the first answer, loading included
  absl::Duration rpc_timeout = absl::Seconds(30);      // of each unary call
  absl::Duration release_timeout = absl::Seconds(5);   // of a release nobody waits for

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
