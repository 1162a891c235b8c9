#include "core/model/table_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace pleiad {
namespace {

TableLayout Make(const std::vector<uint64_t>& shard_rows, DType dtype, uint32_t head_dim) {
  TableLayout table;
  table.dtype = dtype;
  table.head_dim = head_dim;
  for (const uint64_t rows : shard_rows) {
    const auto i = static_cast<uint32_t>(table.shards.size());
    table.shards.push_back({i % 3, 1000 + 77ull * i, table.rows, rows});
    table.rows += rows;
  }
  return table;
}

void ExpectEveryRowInItsShard(const std::vector<uint64_t>& shard_rows) {
  const TableLayout table = Make(shard_rows, DType::kF32, 5);
  uint64_t row = 0;
  for (const TableShard& shard : table.shards) {
    for (uint64_t i = 0; i < shard.rows; ++i, ++row) {
      const RowLocation place = table.Locate(RowId(row));
      ASSERT_EQ(place.file, shard.file) << row;
      ASSERT_EQ(place.offset, shard.offset + i * 20) << row;
      ASSERT_EQ(place.bytes, 20u);
    }
  }
}

TEST(TableLayoutTest, B08_EqualShardsWithAShorterLastOne) {
  ExpectEveryRowInItsShard({16});
  ExpectEveryRowInItsShard({16, 16, 16, 16});
  ExpectEveryRowInItsShard({16, 16, 16, 3});
}

TEST(TableLayoutTest, B08_UnequalShards) {
  ExpectEveryRowInItsShard({1, 16, 2, 30, 7});
  ExpectEveryRowInItsShard({100, 1, 1, 1});
  ExpectEveryRowInItsShard({1, 1, 1, 100});
  ExpectEveryRowInItsShard({5, 5, 6, 5, 4, 6});
}

TEST(TableLayoutTest, B05_TheStrideFollowsTheDType) {
  for (const auto& [dtype, bytes] : {std::pair{DType::kF8E4M3, 160u}, {DType::kBf16, 320u}, {DType::kF32, 640u}}) {
    const TableLayout table = Make({1000}, dtype, 160);
    EXPECT_EQ(table.disk_row_bytes(), bytes);
    EXPECT_EQ(table.Locate(RowId(127)).offset, 1000 + 127ull * bytes);
  }
}

TEST(TableLayoutTest, F32RowsAreKeptAsBf16) {
  EXPECT_EQ(Make({1}, DType::kF32, 160).arena_row_bytes(), 320u);
  EXPECT_EQ(Make({1}, DType::kBf16, 160).arena_row_bytes(), 320u);
  EXPECT_EQ(Make({1}, DType::kF8E4M3, 160).arena_row_bytes(), 160u);
}

TEST(TableLayoutTest, B04_OffsetsOfTheReleasedTableNeedMoreThan32Bits) {
  TableLayout table = Make({320001536}, DType::kBf16, 160);
  table.shards[0].offset = 0;
  EXPECT_EQ(table.Locate(RowId(320001535)).offset, 102400491200u);

  const TableLayout cut = Make(std::vector<uint64_t>(128, 2500012), DType::kBf16, 160);
  EXPECT_EQ(cut.rows, 320001536u);
  EXPECT_EQ(cut.Locate(RowId(320001535)).offset, cut.shards[127].offset + 2500011ull * 320);
}

}  // namespace
}  // namespace pleiad
