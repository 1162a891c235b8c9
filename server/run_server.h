// The process of pleiad-server, and of others that are the same server with a part put in.
#pragma once

#include "server/checkpoint_loader.h"
#include "server/grpc_listeners.h"

namespace pleiad {

// What takes a place in the server; each may be empty.
struct ServerParts {
  DeviceWrapper wrap_device = {};
  GenericServiceFactory make_generic = {};
};

// Parses the command line and the environment, serves until the server has ended, and returns the exit code.
int RunServer(int argc, char** argv, ServerParts parts = {});

}  // namespace pleiad
