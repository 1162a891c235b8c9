#include "server/memory_plan.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rows/resident_row_store.h"
#include "server/flag_values.h"

namespace pleiad {

absl::StatusOr<MemoryPlan> PlanMemory(const Checkpoint& checkpoint, const ServerFlags& flags) {
  const Geometry& geometry = checkpoint.config().geometry;
  const uint64_t layers = checkpoint.layers().size();
  const uint64_t channels = geometry.channels();
  PLEIAD_ASSIGN_OR_RETURN(const uint64_t slots, ResidentSlots(checkpoint));
  MemoryPlan plan;
  plan.arena = slots * checkpoint.layers().front().table.arena_row_bytes();
  const uint64_t carry_rows = 2 * uint64_t{geometry.state_len()} + flags.rollback_tokens;  // ring and undo
  plan.carries = flags.max_sequences * layers * carry_rows * channels * sizeof(float);
  plan.weights =
      layers *
      ((channels + geometry.hidden_size) * geometry.embed_dim + channels * (3 + uint64_t{geometry.conv_kernel_size})) *
      sizeof(Bf16);
  // Embeddings in BF16; keys, values and conv input in FP32.
  plan.scratch =
      flags.max_tokens * (sizeof(Bf16) * geometry.embed_dim + sizeof(float) * (2 * channels + geometry.hidden_size));
  return plan;
}

std::string Describe(const MemoryPlan& plan) {
  return absl::StrCat("table ", FormatSize(plan.arena), ", carries ", FormatSize(plan.carries), ", weights ",
                      FormatSize(plan.weights), ", scratch about ", FormatSize(plan.scratch), ", together ",
                      FormatSize(plan.total()));
}

}  // namespace pleiad
