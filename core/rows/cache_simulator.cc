#include "core/rows/cache_simulator.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"

namespace pleiad {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFFu;

// A set of integers below `size` that knows its largest: bits, and above each 64 of them one bit that says whether any
// is set.
class BitTree {
 public:
  explicit BitTree(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(std::max<size_t>(size, 1));
    } while (size > 1);
  }

  bool Contains(size_t value) const { return (levels_[0][value / 64] >> (value % 64) & 1) != 0; }

  void Insert(size_t value) {
    for (std::vector<uint64_t>& level : levels_) {
      level[value / 64] |= uint64_t{1} << (value % 64);
      value /= 64;
    }
  }

  void Erase(size_t value) {
    for (std::vector<uint64_t>& level : levels_) {
      if ((level[value / 64] &= ~(uint64_t{1} << (value % 64))) != 0) return;
      value /= 64;
    }
  }

  // Of a set that is not empty.
  size_t Largest() const {
    size_t at = 0;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      at = at * 64 + static_cast<size_t>(std::bit_width((*level)[at])) - 1;
    }
    return at;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace

CacheTrace CacheTrace::Of(absl::Span<const uint64_t> keys) {
  CacheTrace trace;
  trace.ids.reserve(keys.size());
  absl::flat_hash_map<uint64_t, uint32_t> number;
  for (const uint64_t key : keys) {
    const auto [entry, is_new] = number.try_emplace(key, trace.distinct);
    if (is_new) ++trace.distinct;
    trace.ids.push_back(entry->second);
  }
  return trace;
}

CacheCounts SimulatePolicy(PolicyKind kind, uint32_t slots, const CacheTrace& trace, uint32_t steps_per_eviction) {
  slots = std::min(slots, trace.distinct);
  const std::unique_ptr<EvictionPolicy> policy = CreatePolicy(kind, slots);
  std::vector<uint32_t> slot_of(trace.distinct, kNone);
  std::vector<uint32_t> id_in(slots);
  uint32_t taken = 0;
  CacheCounts counts;
  for (const uint32_t id : trace.ids) {
    if (slot_of[id] != kNone) {
      ++counts.hits;
      policy->Touch(slot_of[id]);
      continue;
    }
    ++counts.misses;
    uint32_t slot = taken;
    if (taken < slots) {
      ++taken;
    } else {
      uint32_t left = steps_per_eviction;
      const std::optional<uint32_t> victim = policy->Evict([](uint32_t) { return true; }, &left);
      counts.steps += steps_per_eviction - left;
      counts.max_steps = std::max(counts.max_steps, steps_per_eviction - left);
      if (!victim.has_value()) continue;
      ++counts.evictions;
      slot = *victim;
      slot_of[id_in[slot]] = kNone;
    }
    slot_of[id] = slot;
    id_in[slot] = id;
    policy->Inserted(slot, id);
  }
  return counts;
}

CacheCounts SimulateMin(uint32_t slots, const CacheTrace& trace) {
  const size_t size = trace.ids.size();
  std::vector<uint32_t> next(size);  // when the row looked up here is named again
  {
    std::vector<uint32_t> seen(trace.distinct, kNone);
    for (size_t t = size; t-- > 0;) {
      uint32_t& later = seen[trace.ids[t]];
      next[t] = later;
      later = static_cast<uint32_t>(t);
    }
  }
  // When the cached rows are named again: one time each, and never the same.
  BitTree cached(size);
  uint32_t count = 0;
  CacheCounts counts;
  for (size_t t = 0; t < size; ++t) {
    if (cached.Contains(t)) {
      ++counts.hits;
      cached.Erase(t);
      --count;
    } else {
      ++counts.misses;
    }
    if (next[t] == kNone) continue;
    cached.Insert(next[t]);
    if (count < slots) {
      ++count;
    } else {
      cached.Erase(cached.Largest());
      ++counts.evictions;
    }
  }
  return counts;
}

}  // namespace pleiad
