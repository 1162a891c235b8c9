#include "core/rows/resident_row_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "core/rows/pread_reader.h"
#include "core/rows/resident_loader.h"
#include "tests/core/rows/row_files.h"
#include "tests/support/rows/scripted_reader.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kHeadDim = 5;

// Element j of row r, as stored bytes, differs for every (r, j) and dtype.
std::vector<std::byte> StoredRow(DType dtype, uint64_t row) {
  const size_t size = ByteSize(dtype);
  std::vector<std::byte> bytes(kHeadDim * size);
  for (uint32_t j = 0; j < kHeadDim; ++j) {
    // As F32 finite, with all mantissa bits in use, so that rounding to BF16 changes it.
    const uint64_t value = (((row * kHeadDim + j + 1) * 0x9E3779B97F4A7C15ull) >> 32) & 0xBFFFFFFFu;
    std::memcpy(bytes.data() + j * size, &value, size);
  }
  return bytes;
}

std::vector<std::byte> ArenaRow(DType dtype, uint64_t row) {
  const std::vector<std::byte> stored = StoredRow(dtype, row);
  if (dtype != DType::kF32) return stored;
  std::vector<std::byte> rounded(kHeadDim * sizeof(Bf16));
  for (uint32_t j = 0; j < kHeadDim; ++j) {
    float value;
    std::memcpy(&value, stored.data() + 4 * j, 4);
    const Bf16 bits = FloatToBf16(value);
    std::memcpy(rounded.data() + 2 * j, &bits, 2);
  }
  return rounded;
}

// A table of shards of 7, 7, ... rows that lie in two files in descending shard order with 0xEE between them.
struct Fixture {
  Fixture(DType dtype, uint64_t rows, uint64_t rows_per_shard = 7) {
    table.dtype = dtype;
    table.head_dim = kHeadDim;
    table.rows = rows;
    for (uint64_t row = 0; row < rows; row += rows_per_shard) {
      table.shards.push_back({.first_row = row, .rows = std::min(rows_per_shard, rows - row)});
    }
    std::vector<std::byte> bytes[2];
    for (size_t i = table.shards.size(); i-- > 0;) {
      TableShard& shard = table.shards[i];
      shard.file = i % 2;
      bytes[i % 2].resize(bytes[i % 2].size() + 24, std::byte{0xEE});
      shard.offset = bytes[i % 2].size();
      for (uint64_t row = 0; row < shard.rows; ++row) {
        const std::vector<std::byte> stored = StoredRow(dtype, shard.first_row + row);
        bytes[i % 2].insert(bytes[i % 2].end(), stored.begin(), stored.end());
      }
    }
    files.push_back(FileOf(bytes[0], "a.safetensors"));
    files.push_back(FileOf(bytes[1], "b.safetensors"));
  }

  TableLayout table;
  std::vector<CheckpointFile> files;
};

// Stands for the device: arena rows and how often each was written.
struct FakeArena {
  FakeArena(uint64_t slots, uint32_t row_bytes_in)
      : row_bytes(row_bytes_in), bytes(slots * row_bytes_in), writes(slots) {}

  ResidentLoadOptions Options() {
    ResidentLoadOptions options;
    options.write_arena = [this](Slot first, absl::Span<const std::byte> rows) {
      std::memcpy(bytes.data() + size_t{first.value()} * row_bytes, rows.data(), rows.size());
      for (size_t i = 0; i < rows.size() / row_bytes; ++i) writes[first.value() + i].fetch_add(1);
      return absl::OkStatus();
    };
    return options;
  }

  std::vector<std::byte> Row(uint64_t slot) const {
    const auto first = bytes.begin() + static_cast<ptrdiff_t>(slot * row_bytes);
    return {first, first + row_bytes};
  }

  uint32_t row_bytes;
  std::vector<std::byte> bytes;
  std::vector<std::atomic<int>> writes;
};

TEST(ResidentLoadTest, EveryRowOfEveryShardLiesAtItsSlotOnce) {
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF8E4M3}) {
    const Fixture fixture(dtype, 45);
    FakeArena arena(45, fixture.table.arena_row_bytes());
    const auto reader = CreatePreadReader(fixture.files, 2);
    const auto store = LoadResidentRowStore({&fixture.table}, *reader, arena.Options());
    ASSERT_TRUE(store.ok()) << store.status();
    for (uint64_t row = 0; row < 45; ++row) {
      EXPECT_EQ(arena.Row(row), ArenaRow(dtype, row)) << Name(dtype) << " row " << row;
      EXPECT_EQ(arena.writes[row], 1);
    }
  }
}

TEST(ResidentLoadTest, RoundingIsToNearestEvenAndKeepsNan) {
  Fixture fixture(DType::kF32, 1);
  const uint32_t values[kHeadDim] = {0x3F808000, 0x3F818000, 0x3F808001, 0x7FC00000, 0x80000000};
  ASSERT_EQ(
      ::pwrite(fixture.files[0].fd.get(), values, sizeof(values), static_cast<off_t>(fixture.table.shards[0].offset)),
      static_cast<ssize_t>(sizeof(values)));
  FakeArena arena(1, fixture.table.arena_row_bytes());
  const auto reader = CreatePreadReader(fixture.files, 1);
  ASSERT_TRUE(LoadResidentRowStore({&fixture.table}, *reader, arena.Options()).ok());
  Bf16 bits[kHeadDim];
  std::memcpy(bits, arena.bytes.data(), sizeof(bits));
  EXPECT_THAT(bits, ElementsAre(0x3F80, 0x3F82, 0x3F81, 0x7FC0, 0x8000));
}

TEST(ResidentLoadTest, ShardsLargerThanAChunkAreCutIntoWholeRowsInFileOrder) {
  TableLayout table;
  table.dtype = DType::kBf16;
  table.head_dim = 1000;
  table.rows = 10000;
  table.shards = {{.file = 1, .offset = 64, .first_row = 0, .rows = 5000},
                  {.file = 0, .offset = 8, .first_row = 5000, .rows = 5000}};
  const std::vector<LoadChunk> chunks = PlanLoad({&table}, {100});
  uint64_t rows = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_LE(chunks[i].rows * 2000, kLoadChunkBytes);
    rows += chunks[i].rows;
    if (i == 0) continue;
    EXPECT_LT(std::pair(chunks[i - 1].file, chunks[i - 1].offset), std::pair(chunks[i].file, chunks[i].offset));
    if (chunks[i].file == chunks[i - 1].file) {
      EXPECT_EQ(chunks[i].offset, chunks[i - 1].offset + chunks[i - 1].rows * 2000);
      EXPECT_EQ(chunks[i].first_slot.value(), chunks[i - 1].first_slot.value() + chunks[i - 1].rows);
    }
  }
  EXPECT_EQ(rows, 10000u);
  EXPECT_EQ(chunks.front().first_slot, Slot(5100));
  EXPECT_GT(chunks.size(), 4u);
}

TEST(ResidentLoadTest, ChunksThatComeLateAndInReverseOrderStillLandAtTheirSlots) {
  const Fixture fixture(DType::kBf16, 40, 4);
  FakeArena arena(40, fixture.table.arena_row_bytes());
  ScriptedReader reader(CreatePreadReader(fixture.files, 1), [](const RowRead&, size_t ordinal) {
    return ordinal < 4 ? ReadFault::kHold : ReadFault::kNone;
  });
  std::thread releaser([&] {
    reader.AwaitHeld(4);
    reader.Release(ScriptedReader::Order::kReversed);
  });
  const auto store = LoadResidentRowStore({&fixture.table}, reader, arena.Options());
  releaser.join();
  ASSERT_TRUE(store.ok()) << store.status();
  for (uint64_t row = 0; row < 40; ++row) EXPECT_EQ(arena.Row(row), ArenaRow(DType::kBf16, row)) << row;
}

TEST(ResidentLoadTest, AFailedReadStopsTheLoadWithItsStatus) {
  for (const ReadFault fault : {ReadFault::kError, ReadFault::kShort}) {
    for (const size_t failing : {size_t{0}, size_t{5}, size_t{9}}) {
      const Fixture fixture(DType::kBf16, 40, 4);
      FakeArena arena(40, fixture.table.arena_row_bytes());
      ScriptedReader reader(CreatePreadReader(fixture.files, 2), [&](const RowRead&, size_t ordinal) {
        return ordinal == failing ? fault : ReadFault::kNone;
      });
      const auto store = LoadResidentRowStore({&fixture.table}, reader, arena.Options());
      EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(store.status().message()), HasSubstr("offset"));
    }
  }
}

TEST(ResidentLoadTest, AFileCutByOneByteIsRefusedByName) {
  const Fixture fixture(DType::kBf16, 45);
  ASSERT_EQ(::ftruncate(fixture.files[0].fd.get(), static_cast<off_t>(fixture.files[0].bytes - 1)), 0);
  FakeArena arena(45, fixture.table.arena_row_bytes());
  const auto reader = CreatePreadReader(fixture.files, 2);
  const auto store = LoadResidentRowStore({&fixture.table}, *reader, arena.Options());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("a.safetensors"));
}

TEST(ResidentLoadTest, AFailedWriteStopsTheLoadWithItsStatus) {
  const Fixture fixture(DType::kBf16, 45);
  ResidentLoadOptions options;
  options.write_arena = [](Slot, absl::Span<const std::byte>) { return absl::InternalError("device lost"); };
  const auto reader = CreatePreadReader(fixture.files, 2);
  EXPECT_EQ(LoadResidentRowStore({&fixture.table}, *reader, options).status(), absl::InternalError("device lost"));
}

TEST(ResidentLoadTest, CancellingReturnsThoughAReadNeverEnds) {
  const Fixture fixture(DType::kBf16, 40, 4);
  FakeArena arena(40, fixture.table.arena_row_bytes());
  ResidentLoadOptions options = arena.Options();
  std::atomic<bool> cancelled = false;
  options.cancelled = [&] { return cancelled.load(); };
  ScriptedReader reader(CreatePreadReader(fixture.files, 1), [](const RowRead&, size_t ordinal) {
    return ordinal == 3 ? ReadFault::kNever : ReadFault::kNone;
  });
  std::thread canceller([&] {
    reader.AwaitHeld(1);
    cancelled = true;
  });
  const auto store = LoadResidentRowStore({&fixture.table}, reader, options);
  canceller.join();
  EXPECT_EQ(store.status().code(), absl::StatusCode::kCancelled);
}

TEST(ResidentLoadTest, ProgressGrowsAndEndsAtTheTotal) {
  const Fixture fixture(DType::kF32, 45);
  FakeArena arena(45, fixture.table.arena_row_bytes());
  ResidentLoadOptions options = arena.Options();
  std::vector<LoadProgress> seen;
  options.on_progress = [&](const LoadProgress& progress) { seen.push_back(progress); };
  const auto reader = CreatePreadReader(fixture.files, 2);
  ASSERT_TRUE(LoadResidentRowStore({&fixture.table}, *reader, options).ok());
  ASSERT_FALSE(seen.empty());
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes_read, seen[i - 1].bytes_read);
  EXPECT_EQ(seen.back().bytes_read, 45u * kHeadDim * 4);
  EXPECT_EQ(seen.back().bytes_total, 45u * kHeadDim * 4);
  EXPECT_GT(seen.back().bytes_per_second, 0);
}

TEST(ResidentSlotsTest, TablesThatPassTheGatherIndexAreRefused) {
  TableLayout half;
  half.rows = uint64_t{1} << 30;
  TableLayout more = half;
  more.rows += 1;
  EXPECT_EQ(*ResidentSlots({&half, &half}), uint64_t{1} << 31);
  EXPECT_EQ(ResidentSlots({&half, &more}).status().code(), absl::StatusCode::kInvalidArgument);
  TableLayout huge;
  huge.rows = ~uint64_t{0};
  EXPECT_EQ(ResidentSlots({&half, &huge}).status().code(), absl::StatusCode::kInvalidArgument);
}

class ResidentRowStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto store = LoadResidentRowStore({&first_.table, &second_.table}, *reader_, arena_.Options());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // Both layers read the same files: what differs is where their slots begin.
  Fixture first_{DType::kBf16, 45};
  Fixture second_{DType::kBf16, 45};
  FakeArena arena_{90, first_.table.arena_row_bytes()};
  std::unique_ptr<RowReader> reader_ = CreatePreadReader(first_.files, 2);
  std::unique_ptr<RowStore> store_;
};

TEST_F(ResidentRowStoreTest, ARowsSlotIsTheFirstSlotOfItsLayerPlusTheRow) {
  for (const uint32_t layer : {0u, 1u}) {
    int calls = 0;
    ResolveResult result;
    const auto plan = store_->Resolve(LayerOrdinal(layer), {RowId(0), RowId(44), RowId(7), RowId(7)},
                                      ResolvePurpose::kStep, [&](ResolveResult r) {
                                        ++calls;
                                        result = std::move(r);
                                      });
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(result.status.ok());
    EXPECT_EQ(result.counts.hits, 4u);
    EXPECT_EQ(result.counts.misses + result.counts.joins, 0u);
    ASSERT_EQ(plan->gather().size(), 4u);
    const uint64_t rows[] = {0, 44, 7, 7};
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_FALSE(plan->gather()[i].in_staging());
      EXPECT_EQ(plan->gather()[i].row(), 45 * layer + rows[i]);
      EXPECT_EQ(arena_.Row(plan->gather()[i].row()), ArenaRow(DType::kBf16, rows[i]));
    }
    std::vector<Fill> fills;
    store_->AppendFills(*plan, 0, 4, fills);
    EXPECT_TRUE(fills.empty());
    EXPECT_TRUE(plan->Claim());
  }
}

TEST_F(ResidentRowStoreTest, StatsCountHitsPerLayer) {
  EXPECT_STREQ(store_->mode(), "resident");
  store_->Resolve(LayerOrdinal(1), {RowId(1), RowId(2)}, ResolvePurpose::kStep, [](ResolveResult) {});
  store_->Resolve(LayerOrdinal(0), {RowId(1)}, ResolvePurpose::kPrestage, [](ResolveResult) {});
  store_->Resolve(LayerOrdinal(1), {}, ResolvePurpose::kStep, [](ResolveResult) {});
  const RowStoreStats stats = store_->stats();
  ASSERT_EQ(stats.lookups.size(), 2u);
  EXPECT_EQ(stats.lookups[0].hits, 1u);
  EXPECT_EQ(stats.lookups[1].hits, 2u);
  EXPECT_EQ(stats.slots_idle, 90u);
  EXPECT_EQ(stats.read_bytes, 90u * kHeadDim * 2);
}

}  // namespace
}  // namespace pleiad
