// pleiad-server as a child process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/process/child_process.h"

namespace pleiad::testing {

// On `listen` and a metrics port of its own.
struct ServerProcess {
  // `flags` follow --model, --listen, --metrics-listen and, unless they name them, --table resident and the --device of
  // the tests.
  // `launcher`: a command that runs the one behind it, if any.
  ServerProcess(const std::string& model, const std::string& listen, const std::vector<std::string>& flags,
                const std::vector<std::string>& launcher = {});

  // Reads the ready line; false when the server ended without one.
  bool WaitUntilReady();

  ChildProcess child;
  std::string address;        // set by WaitUntilReady
  uint16_t metrics_port = 0;  // set by WaitUntilReady
};

}  // namespace pleiad::testing
