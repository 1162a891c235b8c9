#include "client/cli/plan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/model/ngram_hasher.h"
#include "core/rows/cached_row_store.h"
#include "core/rows/row_map.h"

namespace pleiad::cli {
namespace {

// The server's defaults.
constexpr uint64_t kMaxTokens = 8192;
constexpr uint64_t kRollbackTokens = 8;
constexpr uint64_t kReserveBytes = 200'000'000;

constexpr uint32_t kDepths[] = {1, 16, 128};
constexpr double kRowShares[] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1};

CacheTrace HashTrace(const Checkpoint& checkpoint, const std::vector<uint32_t>& tokens) {
  const ModelConfig& config = checkpoint.config();
  const Geometry& geometry = config.geometry;
  const size_t heads = geometry.heads();
  const size_t layers = checkpoint.layers().size();
  std::vector<NgramHasher> hashers;
  for (const PleLayer& layer : checkpoint.layers()) {
    hashers.emplace_back(layer.hash, geometry.ngram_size, geometry.heads_per_ngram, config.eos_token_id);
  }
  const std::vector<uint32_t> fresh(geometry.context_len(), config.eos_token_id);
  std::vector<uint64_t> keys(tokens.size() * layers * heads);
  std::vector<RowId> ids(tokens.size() * heads);
  for (size_t layer = 0; layer < layers; ++layer) {
    hashers[layer].Hash(fresh, tokens, absl::MakeSpan(ids));
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t token = i / heads;
      keys[(token * layers + layer) * heads + i % heads] = uint64_t{layer} << 48 | ids[i].value();
    }
  }
  return CacheTrace::Of(keys);
}

uint64_t WeightBytes(const Geometry& g) {
  const uint64_t c = g.channels();
  return sizeof(Bf16) * ((c + g.hidden_size) * g.embed_dim + c * (3 + uint64_t{g.conv_kernel_size}));
}

uint64_t FixedBytes(const Checkpoint& checkpoint) {
  const Geometry& g = checkpoint.config().geometry;
  const uint64_t row_bytes = checkpoint.layers().front().table.arena_row_bytes();
  const uint64_t scratch = sizeof(Bf16) * g.embed_dim + sizeof(float) * (2 * uint64_t{g.channels()} + g.hidden_size);
  const uint64_t staging = 2 * uint64_t{g.heads()} * row_bytes;
  return checkpoint.layers().size() * WeightBytes(g) + kMaxTokens * (scratch + staging) + kReserveBytes;
}

// The arena with what it takes to find its rows.
uint64_t CacheBytes(const Checkpoint& checkpoint, uint32_t slots) {
  std::vector<const TableLayout*> tables;
  for (const PleLayer& layer : checkpoint.layers()) tables.push_back(&layer.table);
  const auto staging_rows = static_cast<uint32_t>(2 * kMaxTokens * checkpoint.config().geometry.heads());
  return slots * uint64_t{tables.front()->arena_row_bytes()} + CachedRowStoreBytes(tables, slots, staging_rows);
}

std::vector<uint64_t> ArenaSizes(const PlanOptions& options, uint64_t rows, uint64_t row_bytes) {
  std::vector<uint64_t> sizes = options.arenas;
  if (sizes.empty()) {
    for (const double share : kRowShares) {
      sizes.push_back(std::max<uint64_t>(1, static_cast<uint64_t>(share * static_cast<double>(rows))) * row_bytes);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Checkpoint& checkpoint, const std::vector<uint32_t>& tokens,
                              const PlanOptions& options) {
  const Geometry& geometry = checkpoint.config().geometry;
  const uint64_t layers = checkpoint.layers().size();
  Plan plan;
  plan.tokens = tokens.size();
  plan.lookups = plan.tokens * layers * geometry.heads();
  constexpr uint64_t kMostLookups = std::numeric_limits<uint32_t>::max() - 1;
  if (plan.lookups > kMostLookups) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: ", plan.tokens, " tokens name ", plan.lookups, " rows, must be at most ", kMostLookups));
  }
  PLEIAD_ASSIGN_OR_RETURN(const std::unique_ptr<RowReader> reader, CreateRowReader(checkpoint.files(), options.reader));
  plan.reader = absl::StrCat(reader->info().name, ", ", reader->info().detail);
  for (const uint32_t depth : kDepths) {
    PLEIAD_ASSIGN_OR_RETURN(DiskRate rate, MeasureReads(checkpoint, reader.get(), depth, options.measure_time));
    plan.disk.push_back(rate);
  }

  const CacheTrace trace = HashTrace(checkpoint, tokens);
  plan.rows = trace.distinct;
  plan.memory = options.memory;
  plan.fixed_bytes = FixedBytes(checkpoint);
  const uint64_t carry_rows = 2 * uint64_t{geometry.state_len()} + kRollbackTokens;  // ring and undo
  plan.sequence_bytes = layers * carry_rows * geometry.channels() * sizeof(float);
  const uint64_t row_bytes = checkpoint.layers().front().table.arena_row_bytes();
  uint64_t table_rows = 0;
  for (const PleLayer& layer : checkpoint.layers()) table_rows += layer.table.rows;
  for (const uint64_t bytes : ArenaSizes(options, plan.rows, row_bytes)) {
    ArenaPlan arena;
    arena.bytes = bytes;
    arena.slots = static_cast<uint32_t>(std::min({bytes / row_bytes, table_rows, uint64_t{kMaxSlots}}));
    for (const PolicyKind kind : kPolicyKinds) {
      const CacheCounts counts = SimulatePolicy(kind, arena.slots, trace);
      const size_t i = static_cast<size_t>(kind);
      arena.hit_rate[i] = counts.hit_rate();
      arena.tokens_per_second[i] =
          plan.disk.back().reads_per_second * static_cast<double>(plan.tokens) / static_cast<double>(counts.misses);
    }
    arena.best_hit_rate = SimulateMin(arena.slots, trace).hit_rate();
    const uint64_t taken = plan.fixed_bytes + CacheBytes(checkpoint, arena.slots);
    arena.sequences = taken < plan.memory ? (plan.memory - taken) / plan.sequence_bytes : 0;
    plan.arenas.push_back(arena);
  }
  return plan;
}

}  // namespace pleiad::cli
