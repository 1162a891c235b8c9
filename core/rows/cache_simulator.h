// What an eviction policy would make of a trace of row lookups. Pure: no row is read.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "core/rows/eviction_policy.h"

namespace pleiad {

// Lookups in order, their keys numbered from 0 in order of first appearance.
struct CacheTrace {
  std::vector<uint32_t> ids;
  uint32_t distinct = 0;

  static CacheTrace Of(absl::Span<const uint64_t> keys);  // fewer than 2^32 - 1 keys
};

struct CacheCounts {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  uint64_t steps = 0;      // candidates looked at by all evictions
  uint32_t max_steps = 0;  // by one of them

  double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};

// Runs the trace through an empty arena. A row that misses takes a vacant slot, else that of a victim; where
// `steps_per_eviction` candidates yield none it is not kept.
CacheCounts SimulatePolicy(PolicyKind kind, uint32_t slots, const CacheTrace& trace,
                           uint32_t steps_per_eviction = std::numeric_limits<uint32_t>::max());

// Belady's MIN, that no policy can beat: keeps, of the cached rows and the one that came, those named again soonest (so
// a row may be read and not kept).
CacheCounts SimulateMin(uint32_t slots, const CacheTrace& trace);

}  // namespace pleiad
