#include "core/rows/row_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace pleiad {
namespace {

RowMap Make(RowMapKind kind, uint64_t rows, uint64_t most_cached) {
  absl::StatusOr<RowMap> map = RowMap::Create(kind, rows, most_cached, HugePages::kNo);
  EXPECT_TRUE(map.ok()) << map.status();
  return *std::move(map);
}

TEST(RowPlace, TellsNothingSlotsAndArrivalsApart) {
  EXPECT_TRUE(RowPlace().absent());
  for (const uint32_t value : {0u, 1u, 77u, kMaxSlots - 1}) {
    const RowPlace slot = RowPlace::FromBits(RowPlace::InSlot(value).bits());
    EXPECT_FALSE(slot.absent() || slot.arriving());
    EXPECT_EQ(slot.slot(), value);
    const RowPlace arrival = RowPlace::FromBits(RowPlace::Arriving(value).bits());
    EXPECT_TRUE(arrival.arriving() && !arrival.absent());
    EXPECT_EQ(arrival.arrival(), value);
  }
}

TEST(RowMap, DirectAndCompactAgreeOnRandomOperations) {
  constexpr uint64_t kRows = 500;
  RowMap direct = Make(RowMapKind::kDirect, kRows, 100), compact = Make(RowMapKind::kCompact, kRows, 100);
  std::map<uint64_t, uint32_t> model;
  std::mt19937 rng(5);
  for (int step = 0; step < 20000; ++step) {
    const RowId row(rng() % kRows);
    direct.Prefetch(row);
    compact.Prefetch(row);
    switch (rng() % 3) {
      case 0: {
        const uint32_t value = rng() % kMaxSlots;
        const RowPlace place = rng() % 2 == 0 ? RowPlace::InSlot(value) : RowPlace::Arriving(value);
        direct.Set(row, place);
        compact.Set(row, place);
        model[row.value()] = place.bits();
        break;
      }
      case 1:
        direct.Erase(row);
        compact.Erase(row);
        model.erase(row.value());
        break;
      default: {
        const auto found = model.find(row.value());
        const uint32_t expected = found == model.end() ? 0 : found->second;
        ASSERT_EQ(direct.Find(row).bits(), expected) << step;
        ASSERT_EQ(compact.Find(row).bits(), expected) << step;
      }
    }
  }
  for (uint64_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(direct.Find(RowId(row)).bits(), compact.Find(RowId(row)).bits());
    ASSERT_EQ(direct.Find(RowId(row)).absent(), !model.contains(row));
  }
}

TEST(RowMap, BytesAreThoseAnnounced) {
  EXPECT_EQ(RowMapBytes(RowMapKind::kDirect, 1000, 7), 4000u);
  EXPECT_EQ(RowMapBytes(RowMapKind::kDirect, 0, 0), 0u);
  // The released table: 1.28 GB direct; for a million slots 2^21 entries of 16 bytes and a control byte.
  EXPECT_EQ(RowMapBytes(RowMapKind::kDirect, 320'001'536, 1'000'000), 1'280'006'144u);
  EXPECT_EQ(RowMapBytes(RowMapKind::kCompact, 320'001'536, 1'000'000), (1u << 21) * 17u);
  for (const RowMapKind kind : {RowMapKind::kDirect, RowMapKind::kCompact}) {
    EXPECT_EQ(Make(kind, 1000, 50).bytes(), RowMapBytes(kind, 1000, 50));
  }
}

TEST(RowMap, IsCompactBelowOnePercentOfTheRows) {
  EXPECT_EQ(ChooseRowMap(10'000, 99), RowMapKind::kCompact);
  EXPECT_EQ(ChooseRowMap(10'000, 100), RowMapKind::kDirect);
  EXPECT_EQ(ChooseRowMap(10, 0), RowMapKind::kDirect);
}

}  // namespace
}  // namespace pleiad
