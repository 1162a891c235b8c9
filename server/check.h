// pleiad-server --check.
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "server/flags.h"

namespace pleiad {

// Verifies certificates, tokens and the checkpoint (config, headers, dense weights, hash constants; no rows), and
// writes what it holds, the memory plan and the files needed to `out`. Any error: a server with these flags would
// refuse to start.
absl::Status Check(const ServerFlags& flags, std::ostream& out);

}  // namespace pleiad
