// Replays a recorded trace through a server and compares what comes back with what was recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/trace.h"
#include "client/client.h"

namespace pleiad::cli {

struct ReplayOptions {
  std::string prefix = {};                   // of the tensors' names
  std::optional<uint32_t> layer_index = {};  // zero-based; absent: the model's only PLE layer
  // Tokens of each step, which begins inside the trace; the last one repeats to its end, where it is cut. Empty: the
  // trace's step_lengths, else one step.
  std::vector<uint32_t> steps = {};
  double bound = 3e-3;  // of the relative L2 of outputs and conv rows; ids and embeddings are exact
  // Where half of a replay's steps are done, run a draft and rewind it, take a snapshot, release the sequence, and go
  // on in a new one that the snapshot was restored into.
  bool disturb = false;
};

struct Comparison {
  std::string tensor;  // without the prefix
  std::string how;
  uint64_t values = 0;
  bool exact = false;
  double difference = 0;  // values that differ (exact), else the relative L2 |a-b|/|b|
  double bound = 0;
  bool passed = false;
};

// What was compared, in order. DELTA and HIGHWAY are each replayed on a sequence of their own; HIGHWAY is judged as
// output minus input. InvalidArgument and NotFound for a trace without tokens, highway_in or anything expected, or of
// another geometry, for steps beyond its tokens, and for a disturbed replay of one step; else the server's refusal.
absl::StatusOr<std::vector<Comparison>> Replay(client::Client* client, const Trace& trace,
                                               const ReplayOptions& options);

bool AllPassed(const std::vector<Comparison>& comparisons);
void PrintTable(const std::vector<Comparison>& comparisons, std::ostream& out);

// |a-b|/|b| over all values together; |a| where b is 0. NaN when either holds one.
double RelativeL2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace pleiad::cli
