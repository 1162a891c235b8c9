// The row cache: a table far larger than memory, served through an arena of slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/host_memory.h"
#include "core/model/table_layout.h"
#include "core/rows/eviction_policy.h"
#include "core/rows/row_map.h"
#include "core/rows/row_reader.h"
#include "core/rows/row_store.h"

namespace pleiad {

// Host rows that misses are read into: [rows, row_bytes]. The device's; outlives the store.
struct StagingRows {
  std::byte* data = nullptr;
  uint32_t rows = 0;
  uint32_t row_bytes = 0;
};

struct CachedRowStoreOptions {
  uint32_t slots = 0;  // of the arena, <= kMaxSlots; 0: every row is gathered from staging
  StagingRows staging;
  // Chooses victims; empty: CreatePolicy(kDefaultPolicy, slots).
  std::function<std::unique_ptr<EvictionPolicy>(uint32_t slots)> make_policy;
  std::optional<RowMapKind> map;  // absent: ChooseRowMap
  HugePages huge_pages = HugePages::kAdvise;
  absl::Duration read_timeout = absl::Seconds(5);
  // Between the reads that ask whether a table that failed is readable again.
  absl::Duration probe_interval = absl::Seconds(1);
  Clock* clock = nullptr;  // null: Clock::Real(); outlives the store
  // The table became unreadable (three failed reads in a row) or, with OK, readable again. Called by one thread at a
  // time, without locks of the store; must not call the store. May be empty.
  std::function<void(const absl::Status&)> on_table_health;
};

// Bytes of host memory beside arena and staging: row maps, slots, the default policy, arrivals.
uint64_t CachedRowStoreBytes(absl::Span<const TableLayout* const> tables, uint32_t slots, uint32_t staging_rows);

// `tables` [layers] are copied; `files` [FileIndex] name the files in errors. The store owns `reader`; what is due of
// it is delivered or dropped when the store is destroyed, after all of its plans.
//   InvalidArgument    naming the option, its value and the rule
//   ResourceExhausted  memory for the maps cannot be had
absl::StatusOr<std::unique_ptr<RowStore>> CreateCachedRowStore(absl::Span<const TableLayout* const> tables,
                                                               std::vector<std::string> files,
                                                               std::unique_ptr<RowReader> reader,
                                                               CachedRowStoreOptions options);

}  // namespace pleiad
