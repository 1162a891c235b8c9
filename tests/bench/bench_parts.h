// What makes pleiad-bench-server of pleiad-server.
#pragma once

#include "server/run_server.h"

namespace pleiad::bench {

// No stage, except on a GPU, and an echo beside the service.
ServerParts BenchParts();

}  // namespace pleiad::bench
