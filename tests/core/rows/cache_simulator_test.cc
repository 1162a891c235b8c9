#include "core/rows/cache_simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace pleiad {
namespace {

using ::testing::ElementsAre;

// As `keys` lie, with no cleverness: the fewest misses over every choice of what to keep.
uint64_t FewestMisses(const std::vector<uint64_t>& keys, size_t slots) {
  std::map<std::set<uint64_t>, uint64_t> states = {{{}, 0}};  // cached -> fewest misses that lead there
  for (const uint64_t key : keys) {
    std::map<std::set<uint64_t>, uint64_t> next;
    const auto reach = [&next](const std::set<uint64_t>& state, uint64_t misses) {
      const auto [at, is_new] = next.try_emplace(state, misses);
      if (!is_new) at->second = std::min(at->second, misses);
    };
    for (const auto& [cached, misses] : states) {
      if (cached.count(key) > 0) {
        reach(cached, misses);
        continue;
      }
      reach(cached, misses + 1);
      std::set<uint64_t> with = cached;
      with.insert(key);
      if (with.size() <= slots) reach(with, misses + 1);
      for (const uint64_t victim : cached) {
        std::set<uint64_t> without = with;
        without.erase(victim);
        reach(without, misses + 1);
      }
    }
    states = std::move(next);
  }
  uint64_t best = keys.size();
  for (const auto& [cached, misses] : states) best = std::min(best, misses);
  return best;
}

std::vector<uint64_t> RandomKeys(uint32_t seed, size_t size, uint64_t distinct) {
  std::mt19937 rng(seed);
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < size; ++i) keys.push_back(std::min<uint64_t>(rng() % distinct, rng() % distinct));
  return keys;
}

TEST(CacheSimulator, KeysAreNumberedInOrderOfAppearance) {
  const CacheTrace trace = CacheTrace::Of({900, 7, 900, uint64_t{1} << 60, 7});
  EXPECT_THAT(trace.ids, ElementsAre(0, 1, 0, 2, 1));
  EXPECT_EQ(trace.distinct, 3u);
}

TEST(CacheSimulator, MinMissesAsFewAsCanBe) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    const std::vector<uint64_t> keys = RandomKeys(seed, 40, 6);
    for (uint32_t slots = 0; slots <= 4; ++slots) {
      EXPECT_EQ(SimulateMin(slots, CacheTrace::Of(keys)).misses, FewestMisses(keys, slots)) << seed << " " << slots;
    }
  }
}

// The same rule on a longer trace, by looking ahead for every cached row.
TEST(CacheSimulator, MinEvictsTheRowNamedAgainLast) {
  const std::vector<uint64_t> keys = RandomKeys(5, 3000, 400);
  constexpr size_t kSlots = 50;
  std::set<uint64_t> cached;
  uint64_t hits = 0;
  for (auto at = keys.begin(); at != keys.end(); ++at) {
    hits += cached.count(*at);
    cached.insert(*at);
    if (cached.size() <= kSlots) continue;
    cached.erase(*std::max_element(cached.begin(), cached.end(), [&](uint64_t a, uint64_t b) {
      return std::find(at + 1, keys.end(), a) < std::find(at + 1, keys.end(), b);
    }));
  }
  EXPECT_EQ(SimulateMin(kSlots, CacheTrace::Of(keys)).hits, hits);
}

TEST(CacheSimulator, AHitIsAUseOfTheRow) {
  const CacheTrace trace = CacheTrace::Of({1, 2, 1, 3, 1});
  for (const PolicyKind kind : kPolicyKinds) EXPECT_EQ(SimulatePolicy(kind, 2, trace).hits, 2u) << Name(kind);
}

TEST(CacheSimulator, NoPolicyBeatsMinAndEveryLookupIsCounted) {
  const CacheTrace trace = CacheTrace::Of(RandomKeys(3, 100000, 5000));
  for (const uint32_t slots : {0u, 1u, 50u, 500u, 5000u, 1000000u}) {
    const CacheCounts best = SimulateMin(slots, trace);
    EXPECT_EQ(best.hits + best.misses, trace.ids.size());
    for (const PolicyKind kind : kPolicyKinds) {
      const CacheCounts counts = SimulatePolicy(kind, slots, trace);
      EXPECT_EQ(counts.hits + counts.misses, trace.ids.size());
      EXPECT_LE(counts.hits, best.hits) << Name(kind) << " " << slots;
      if (slots >= trace.distinct) {
        EXPECT_EQ(counts.misses, trace.distinct) << Name(kind);
      }
      if (slots == 0) {
        EXPECT_EQ(counts.hits, 0u) << Name(kind);
      }
      if (slots == 500) {
        EXPECT_GT(counts.hits, trace.ids.size() / 10) << Name(kind);
      }
    }
  }
}

TEST(CacheSimulator, ARowThatFindsNoSlotIsNotKept) {
  const CacheTrace trace = CacheTrace::Of({1, 2, 3, 3, 1, 2});
  const CacheCounts counts = SimulatePolicy(PolicyKind::kClock, 2, trace, 0);
  EXPECT_EQ(counts.hits, 2u);  // 1 and 2 stay for ever
  EXPECT_EQ(counts.evictions, 0u);
}

}  // namespace
}  // namespace pleiad
