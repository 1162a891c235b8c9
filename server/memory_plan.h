// How much memory a checkpoint needs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "server/flags.h"

namespace pleiad {

struct MemoryPlan {  // bytes
  uint64_t arena = 0;
  uint64_t carries = 0;
  uint64_t weights = 0;
  uint64_t scratch = 0;  // of a batch of max_tokens, about

  uint64_t total() const { return arena + carries + weights + scratch; }
};

// With the whole table resident. InvalidArgument when it has more rows than an arena can.
absl::StatusOr<MemoryPlan> PlanMemory(const Checkpoint& checkpoint, const ServerFlags& flags);

// One line a part, for --check and the log.
std::string Describe(const MemoryPlan& plan);

}  // namespace pleiad
