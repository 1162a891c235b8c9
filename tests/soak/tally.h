// What the workers of a soak did and saw, and which of a server's failures that explains.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace pleiad::testing {

struct Tally {
  uint64_t steps = 0, tokens = 0;  // answered OK
  uint64_t batches = 0;            // steps of several sequences
  uint64_t cancels = 0;            // steps and calls given up while they were under way
  uint64_t deadlines = 0;          // ended by a deadline
  uint64_t rewinds = 0, snapshots = 0, restores = 0, prestages = 0, lookups = 0, connections = 0;
  uint64_t opened = 0, abandoned = 0, expired = 0;
  uint64_t compared_outputs = 0, compared_bytes = 0, compared_blobs = 0;
  uint64_t streams_closed = 0;                   // with steps unanswered, or with their client
  std::map<absl::StatusCode, uint64_t> refused;  // answers with an error, as was to be expected
  uint64_t wrong = 0;
  std::vector<std::string> examples;  // of what was wrong, the first few

  void Wrong(const std::string& what);
  Tally& operator+=(const Tally& other);
};
std::ostream& operator<<(std::ostream& out, const Tally& tally);

// Failures that `page`, a server's metrics, counts beyond what the workers saw: one line each. Calls given up under way
// may end there with any code that is the caller's own.
std::vector<std::string> UnexplainedFailures(const std::string& page, const Tally& tally);

}  // namespace pleiad::testing
