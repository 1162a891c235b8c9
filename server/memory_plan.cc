#include "server/memory_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rows/cached_row_store.h"
#include "core/rows/resident_row_store.h"
#include "server/flag_values.h"

namespace pleiad {
namespace {

constexpr uint64_t kGpuWorkspaceBytes = uint64_t{32} << 20;
// Of the plan of a batch on the GPU: an item; a gather index that is sent or found there, and a pair of rows.
constexpr uint64_t kPlanBytesOfToken = 48, kPlanBytesOfRow = 16;

void PlanCachedTable(const Checkpoint& checkpoint, const ServerFlags& flags, uint64_t available_bytes,
                     MemoryPlan& plan) {
  std::vector<const TableLayout*> tables;
  uint64_t rows = 0;
  for (const PleLayer& layer : checkpoint.layers()) {
    tables.push_back(&layer.table);
    rows += layer.table.rows;
  }
  const uint64_t row_bytes = tables.front()->arena_row_bytes();
  const uint64_t asked = flags.cache_bytes.value_or(available_bytes / 4) / row_bytes;
  plan.slots = static_cast<uint32_t>(std::min({asked, rows, uint64_t{kMaxSlots}}));
  plan.staging_rows = 2 * flags.max_tokens * checkpoint.config().geometry.heads();
  plan.arena = plan.slots * row_bytes;
  plan.staging = plan.staging_rows * row_bytes;
  if (tables.front()->disk_row_bytes() != row_bytes) {
    plan.staging += uint64_t{plan.staging_rows} * tables.front()->disk_row_bytes();
  }
  if (plan.on_gpu) plan.staging_twin = plan.staging_rows * row_bytes;
  plan.row_maps = CachedRowStoreBytes(tables, plan.slots, plan.staging_rows);
}

// `where` tells the two memories of a GPU's host apart.
absl::Status Refused(const MemoryPlan& plan, absl::string_view where, uint64_t available_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("memory: ", Describe(plan), "; ", FormatSize(available_bytes), " ", where,
                   "are available; lower --max-sequences, --max-tokens or --cache-bytes (--table cached)",
                   plan.on_gpu ? ", or take --device cpu" : ""));
}

std::string DescribeOnGpu(const MemoryPlan& plan) {
  std::string gpu, host;
  if (plan.table == TableMode::kResident) {
    gpu = absl::StrCat("table ", FormatSize(plan.arena));
  } else {
    gpu = absl::StrCat("row cache ", FormatSize(plan.arena), " (", plan.slots, " slots), staging ",
                       FormatSize(plan.staging_twin));
    host = absl::StrCat("staging ", FormatSize(plan.staging), " (", plan.staging_rows, " rows, pinned), row maps ",
                        FormatSize(plan.row_maps), ", ");
  }
  return absl::StrCat("on the GPU ", gpu, ", carries ", FormatSize(plan.carries), ", weights ",
                      FormatSize(plan.weights), ", scratch about ", FormatSize(plan.scratch), ", tensors ",
                      FormatSize(plan.tensors), ", together ", FormatSize(plan.gpu()), "; on the host ", host,
                      "tensors ", FormatSize(plan.tensors), " (pinned), together ", FormatSize(plan.host()));
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const Checkpoint& checkpoint, const ServerFlags& flags,
                                      const AvailableMemory& available) {
  const uint64_t arena_bytes = available.gpu.value_or(available.host);  // what may hold it
  const Geometry& geometry = checkpoint.config().geometry;
  const uint64_t layers = checkpoint.layers().size();
  const uint64_t channels = geometry.channels();
  MemoryPlan plan;
  plan.on_gpu = available.gpu.has_value();
  uint64_t table_bytes = 0;
  for (const PleLayer& layer : checkpoint.layers()) table_bytes += layer.table.rows * layer.table.arena_row_bytes();
  PLEIAD_ASSIGN_OR_RETURN(plan.table, DecideTable(flags.table, table_bytes, arena_bytes));
  if (plan.table == TableMode::kResident) {
    PLEIAD_ASSIGN_OR_RETURN(const uint64_t slots, ResidentSlots(checkpoint));
    plan.slots = static_cast<uint32_t>(slots);
    plan.arena = table_bytes;
  } else {
    PlanCachedTable(checkpoint, flags, arena_bytes, plan);
  }
  const uint64_t carry_rows = 2 * uint64_t{geometry.state_len()} + flags.rollback_tokens;  // ring and undo
  plan.carries = flags.max_sequences * layers * carry_rows * channels * sizeof(float);
  plan.weights =
      layers *
      ((channels + geometry.hidden_size) * geometry.embed_dim + channels * (3 + uint64_t{geometry.conv_kernel_size})) *
      sizeof(Bf16);
  const uint64_t embeddings = sizeof(Bf16) * uint64_t{geometry.embed_dim};
  if (plan.on_gpu) {
    // Embeddings, keys and values in BF16, two scalars of each gate; the plans of two batches; the GEMM's workspace.
    plan.scratch = flags.max_tokens * (embeddings + sizeof(Bf16) * (channels + geometry.hidden_size) +
                                       2 * sizeof(float) * geometry.hc_count +
                                       2 * (kPlanBytesOfToken + kPlanBytesOfRow * uint64_t{geometry.heads()})) +
                   kGpuWorkspaceBytes;
    // Of two batches. What comes back of one that only gathers are embeddings.
    plan.tensors = 2 * flags.max_tokens * std::max(sizeof(float) * channels, embeddings);
  } else {
    // Embeddings in BF16; keys, values and conv input in FP32.
    plan.scratch = flags.max_tokens * (embeddings + sizeof(float) * (2 * channels + geometry.hidden_size));
  }
  if (plan.gpu() > available.gpu.value_or(0)) return Refused(plan, "of the GPU ", *available.gpu);
  if (plan.host() > available.host) return Refused(plan, plan.on_gpu ? "of the host " : "", available.host);
  return plan;
}

std::string Describe(const MemoryPlan& plan) {
  if (plan.on_gpu) return DescribeOnGpu(plan);
  std::string text;
  if (plan.table == TableMode::kResident) {
    text = absl::StrCat("table ", FormatSize(plan.arena));
  } else {
    text =
        absl::StrCat("row cache ", FormatSize(plan.arena), " (", plan.slots, " slots), staging ",
                     FormatSize(plan.staging), " (", plan.staging_rows, " rows), row maps ", FormatSize(plan.row_maps));
  }
  return absl::StrCat(text, ", carries ", FormatSize(plan.carries), ", weights ", FormatSize(plan.weights),
                      ", scratch about ", FormatSize(plan.scratch), ", together ", FormatSize(plan.host()));
}

}  // namespace pleiad
