// How much memory a checkpoint needs, and how its table is held.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "server/flags.h"
#include "server/table_mode.h"

namespace pleiad {

// Bytes that are free.
struct AvailableMemory {
  uint64_t host = 0;
  std::optional<uint64_t> gpu;  // of a device with memory of its own
};

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

  // On a GPU lie arena, carries, weights, scratch and these; staging and row maps stay on the host, pinned and not.
  bool on_gpu = false;
  uint64_t staging_twin = 0;  // of the staging rows
  uint64_t tensors = 0;       // inputs and outputs of a batch; as many bytes once more, pinned, on the host

  uint64_t gpu() const { return on_gpu ? arena + staging_twin + carries + weights + scratch + tensors : 0; }
  uint64_t host() const {
    return on_gpu ? staging + row_maps + tensors : arena + staging + row_maps + carries + weights + scratch;
  }
};

// `available.gpu` tells a GPU from the CPU. How the table is held, and the size of a row cache that no flag names,
// follow from the memory the arena lies in. InvalidArgument when a resident table has more rows than an arena can;
// ResourceExhausted, naming the sizes and the flags that lower them, when what is planned does not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const Checkpoint& checkpoint, const ServerFlags& flags,
                                      const AvailableMemory& available);

// One line, for --check and the log.
std::string Describe(const MemoryPlan& plan);

}  // namespace pleiad
