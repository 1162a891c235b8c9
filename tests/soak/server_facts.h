// What a server process holds while nothing is under way, and what of it has stayed between two such moments.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/process/server_process.h"

namespace pleiad::testing {

struct ServerFacts {
  uint64_t resident_bytes = 0;
  uint64_t anonymous_bytes = 0;  // of the resident ones
  uint64_t descriptors = 0;
  uint64_t sockets = 0;  // of the descriptors
  uint64_t threads = 0;
  std::map<std::string, double> gauges;  // by metric, what is held or under way
};
std::ostream& operator<<(std::ostream& out, const ServerFacts& facts);

ServerFacts FactsOf(const ServerProcess& server);

// One line for each of: gauges that differ, more descriptors, sockets or threads. `last` is later.
std::vector<std::string> WhatStays(const ServerFacts& first, const ServerFacts& last);

// `facts` of a server that nobody has called yet: gRPC's pollers and threads are still to come.
ServerFacts BeforeFirstCall(ServerFacts facts);

// Asks until nothing of `first` stays, at most for a minute; what it was at last.
ServerFacts AwaitQuiet(const ServerProcess& server, const ServerFacts& first);

}  // namespace pleiad::testing
