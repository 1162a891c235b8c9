// What a row cache would do for a trace of tokens on this machine: hit rate, tokens/s, sequences that fit.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/plan_disk.h"
#include "core/model/checkpoint.h"
#include "core/rows/cache_simulator.h"
#include "core/rows/eviction_policy.h"
#include "core/rows/row_reader_factory.h"

namespace pleiad::cli {

struct PlanOptions {
  std::vector<uint64_t> arenas;  // bytes; empty: shares of the trace's rows
  uint64_t memory = 0;           // bytes for the server
  std::chrono::steady_clock::duration measure_time = std::chrono::seconds(2);  // of each depth
  RowReaderOptions reader;
};

struct ArenaPlan {
  uint64_t bytes = 0;
  uint32_t slots = 0;
  std::array<double, std::size(kPolicyKinds)> hit_rate = {};           // by PolicyKind
  std::array<double, std::size(kPolicyKinds)> tokens_per_second = {};  // what the disk gives, all rows cold at first
  double best_hit_rate = 0;                                            // Belady's MIN
  uint64_t sequences = 0;                                              // that the memory left holds
};

struct Plan {
  uint64_t tokens = 0;
  uint64_t lookups = 0;
  uint64_t rows = 0;  // distinct
  std::string reader;
  std::vector<DiskRate> disk;  // by depth
  uint64_t memory = 0;
  uint64_t fixed_bytes = 0;       // weights, scratch, staging and a reserve: whatever the arena
  uint64_t sequence_bytes = 0;    // one carry of each layer
  std::vector<ArenaPlan> arenas;  // ascending
};

// Hashes `tokens` as one sequence that every PLE layer sees (EOS cuts it), measures the disk, simulates. Blocks.
// InvalidArgument where the trace has too many lookups for the simulator; what the reader or a read failed with.
absl::StatusOr<Plan> MakePlan(const Checkpoint& checkpoint, const std::vector<uint32_t>& tokens,
                              const PlanOptions& options);

std::string PlanTable(const Plan& plan);
std::string PlanSvg(const Plan& plan);

}  // namespace pleiad::cli
