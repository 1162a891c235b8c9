#include "core/rows/pread_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/core/rows/row_files.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<CheckpointFile> TwoFiles() {
  std::vector<CheckpointFile> files;
  files.push_back(FileOf(PatternBytes(10007, 1), "one.safetensors"));
  files.push_back(FileOf(PatternBytes(4099, 77), "two.safetensors"));
  return files;
}

TEST(PreadReaderTest, EveryReadGetsItsBytesAndOneResultUnderItsOwnId) {
  const std::vector<CheckpointFile> files = TwoFiles();
  const std::vector<std::vector<std::byte>> bytes = {PatternBytes(10007, 1), PatternBytes(4099, 77)};
  for (const uint32_t threads : {1u, 4u}) {
    const std::unique_ptr<RowReader> reader = CreatePreadReader(files, threads);
    std::mt19937_64 random(20 + threads);
    constexpr size_t kReads = 2000;
    std::vector<RowRead> reads;
    std::vector<std::vector<std::byte>> destinations(kReads);
    for (size_t i = 0; i < kReads; ++i) {
      const FileIndex file = static_cast<FileIndex>(random() % 2);
      const uint64_t offset = random() % bytes[file].size();
      const uint32_t count = static_cast<uint32_t>(1 + random() % std::min<uint64_t>(400, bytes[file].size() - offset));
      destinations[i].resize(count);
      reads.push_back(
          {.id = 1000 + i, .file = file, .offset = offset, .bytes = count, .destination = destinations[i].data()});
    }
    ResultSink sink;
    for (size_t first = 0; first < kReads; first += 50) {
      reader->Submit(absl::MakeConstSpan(reads).subspan(first, 50), sink.fn());
    }
    std::set<uint64_t> ids;
    for (const RowReadResult& result : sink.Await(kReads)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_TRUE(ids.insert(result.id).second);
    }
    EXPECT_EQ(ids.size(), kReads);
    for (size_t i = 0; i < kReads; ++i) {
      const auto first = bytes[reads[i].file].begin() + static_cast<ptrdiff_t>(reads[i].offset);
      EXPECT_TRUE(std::equal(destinations[i].begin(), destinations[i].end(), first)) << i;
    }
  }
}

TEST(PreadReaderTest, AReadPastTheEndFailsAloneAndNamesFileAndOffset) {
  const std::vector<CheckpointFile> files = TwoFiles();
  const std::unique_ptr<RowReader> reader = CreatePreadReader(files, 2);
  std::vector<std::byte> last(9);
  std::vector<std::byte> past(10);
  const std::vector<RowRead> reads = {{.id = 1, .file = 1, .offset = 4090, .bytes = 9, .destination = last.data()},
                                      {.id = 2, .file = 1, .offset = 4090, .bytes = 10, .destination = past.data()}};
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  for (const RowReadResult& result : sink.Await(2)) {
    if (result.id == 1) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    } else {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(result.status.message()), AllOf(HasSubstr("two.safetensors"), HasSubstr("offset 4099")));
    }
  }
}

TEST(PreadReaderTest, AFileTruncatedWhileOpenIsDataLoss) {
  std::vector<CheckpointFile> files = TwoFiles();
  const std::unique_ptr<RowReader> reader = CreatePreadReader(files, 1);
  ASSERT_EQ(::ftruncate(files[0].fd.get(), 5000), 0);
  std::vector<std::byte> row(100);
  const RowRead read{.id = 1, .file = 0, .offset = 4950, .bytes = 100, .destination = row.data()};
  ResultSink sink;
  reader->Submit(absl::MakeConstSpan(&read, 1), sink.fn());
  EXPECT_EQ(sink.Await(1)[0].status.code(), absl::StatusCode::kDataLoss);
}

TEST(PreadReaderTest, StoppingCancelsReadsThatHaveNotBegunAndDropsNone) {
  const std::vector<CheckpointFile> files = TwoFiles();
  std::unique_ptr<RowReader> owner = CreatePreadReader(files, 1);
  RowReader* const reader = owner.get();
  std::vector<std::byte> rows(101 * 8);
  Mutex mutex;
  CondVar changed;
  bool hundred_queued = false;
  // The reader's only thread stays in this callback until a read submitted from here is cancelled at once: the
  // destructor has begun.
  const RowRead first{.id = 0, .file = 0, .offset = 0, .bytes = 8, .destination = rows.data()};
  reader->Submit(absl::MakeConstSpan(&first, 1), [&](absl::Span<const RowReadResult>) {
    {
      MutexLock lock(&mutex);
      while (!hundred_queued) changed.Wait(&mutex);
    }
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    while (!*cancelled) {
      reader->Submit(absl::MakeConstSpan(&first, 1), [cancelled](absl::Span<const RowReadResult> results) {
        *cancelled = absl::IsCancelled(results.front().status);
      });
      std::this_thread::yield();
    }
  });
  std::vector<RowRead> reads;
  for (uint64_t i = 1; i <= 100; ++i) {
    reads.push_back({.id = i, .file = 0, .offset = 8 * i, .bytes = 8, .destination = rows.data() + 8 * i});
  }
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  EXPECT_EQ(sink.size(), 0u);
  {
    MutexLock lock(&mutex);
    hundred_queued = true;
  }
  changed.NotifyAll();
  owner.reset();
  std::set<uint64_t> ids;
  for (const RowReadResult& result : sink.Await(100)) {
    EXPECT_TRUE(ids.insert(result.id).second);
    EXPECT_TRUE(absl::IsCancelled(result.status)) << result.status;
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST(PreadReaderTest, InfoSaysBuffered) {
  const std::vector<CheckpointFile> files = TwoFiles();
  const std::unique_ptr<RowReader> reader = CreatePreadReader(files, 3);
  EXPECT_EQ(reader->info().name, "pread");
  EXPECT_THAT(reader->info().detail, AllOf(HasSubstr("buffered"), HasSubstr("3 threads")));
}

}  // namespace
}  // namespace pleiad
