#include "core/rows/ghost_table.h"

#include <gtest/gtest.h>

namespace pleiad {
namespace {

TEST(GhostTable, RemembersAKeyUntilItIsTaken) {
  GhostTable table(100);
  EXPECT_FALSE(table.Take(GhostTable::Hash(1)));
  table.Put(GhostTable::Hash(1));
  EXPECT_TRUE(table.Take(GhostTable::Hash(1)));
  EXPECT_FALSE(table.Take(GhostTable::Hash(1)));
}

TEST(GhostTable, ForgetsAfterItsWindow) {
  for (const uint32_t window : {1u, 2u, 3u, 10u}) {
    for (uint32_t later = 0; later < 15; ++later) {
      GhostTable table(window);
      table.Put(GhostTable::Hash(1000));
      for (uint32_t i = 0; i < later; ++i) {
        table.Put(GhostTable::Hash(i));
        table.Take(GhostTable::Hash(i));  // so that no bucket overflows
      }
      EXPECT_EQ(table.Take(GhostTable::Hash(1000)), later < window) << window << " " << later;
    }
  }
}

TEST(GhostTable, AFullBucketForgetsItsOldest) {
  GhostTable table(1000);
  std::vector<uint32_t> same;
  for (uint64_t key = 0; same.size() < GhostTable::kWays + 1; ++key) {
    if (table.BucketOf(GhostTable::Hash(key)) == 3) same.push_back(GhostTable::Hash(key));
  }
  for (const uint32_t hash : same) table.Put(hash);
  for (const uint32_t hash : same) EXPECT_EQ(table.Take(hash), hash != same.front());
}

TEST(GhostTable, RemembersMostOfItsWindowAndNextToNothingElse) {
  constexpr uint32_t kWindow = 200000;
  GhostTable table(kWindow);
  for (uint64_t key = 0; key < 3 * kWindow; ++key) table.Put(GhostTable::Hash(key));
  uint32_t remembered = 0, wrong = 0;
  for (uint64_t key = 2 * kWindow; key < 3 * kWindow; ++key) remembered += table.Take(GhostTable::Hash(key)) ? 1 : 0;
  for (uint64_t key = 0; key < 2 * kWindow; ++key) wrong += table.Take(GhostTable::Hash(key)) ? 1 : 0;
  EXPECT_GT(remembered, kWindow * 95 / 100);
  EXPECT_LT(wrong, kWindow / 1000);
}

// Stamps have 16 bits: a key of long ago must not look new when they come round.
TEST(GhostTable, AnOldKeyStaysForgottenWhenStampsWrap) {
  constexpr uint32_t kWindow = 1000;
  GhostTable table(kWindow);
  for (uint64_t key = 1; key <= 100; ++key) table.Put(GhostTable::Hash(key));
  const uint32_t other = GhostTable::Hash(0);
  for (uint32_t puts = 0; puts < 65536; ++puts) table.Put(other);
  for (uint64_t key = 1; key <= 100; ++key) EXPECT_FALSE(table.Take(GhostTable::Hash(key))) << key;
}

TEST(GhostTable, ANarrowTableRemembersNothing) {
  GhostTable table(0);
  table.Put(GhostTable::Hash(1));
  EXPECT_FALSE(table.Take(GhostTable::Hash(1)));
}

}  // namespace
}  // namespace pleiad
