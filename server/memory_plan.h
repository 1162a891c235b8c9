// How much memory a checkpoint needs, and how its table is held.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "server/flags.h"
#include "server/table_mode.h"

namespace pleiad {

struct MemoryPlan {
  TableMode table = TableMode::kResident;
  uint32_t slots = 0;         // of the arena
  uint32_t staging_rows = 0;  // of a cached table
  // Bytes:
  uint64_t arena = 0;
  uint64_t staging = 0;   // and what is known of each row in it
  uint64_t row_maps = 0;  // and of each slot
  uint64_t carries = 0;
  uint64_t weights = 0;
  uint64_t scratch = 0;  // of a batch of max_tokens, about

  uint64_t total() const { return arena + staging + row_maps + carries + weights + scratch; }
};

// InvalidArgument when a resident table has more rows than an arena can; ResourceExhausted, naming the sizes and the
// flags that lower them, when what is planned does not fit in `available_bytes`.
absl::StatusOr<MemoryPlan> PlanMemory(const Checkpoint& checkpoint, const ServerFlags& flags, uint64_t available_bytes);

// One line, for --check and the log.
std::string Describe(const MemoryPlan& plan);

}  // namespace pleiad
