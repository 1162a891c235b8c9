#include "core/rows/uring_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <set>
#include <thread>

#include "core/rows/direct_file.h"
#include "tests/core/rows/kernel_support.h"
#include "tests/core/rows/row_files.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<size_t>& Sizes() {
  static const std::vector<size_t> sizes = {300007, 70099};
  return sizes;
}

struct Pattern {
  explicit Pattern(const std::string& dir) {
    for (size_t i = 0; i < Sizes().size(); ++i) {
      bytes.push_back(PatternBytes(Sizes()[i], i * 77));
      files.push_back(FileOf(bytes.back(), "file" + std::to_string(i), dir));
    }
  }
  std::vector<std::vector<std::byte>> bytes;
  std::vector<CheckpointFile> files;
};

std::vector<UringFile> Buffered(const std::vector<CheckpointFile>& files) {
  std::vector<UringFile> result;
  for (const CheckpointFile& file : files) {
    result.push_back({.about = {.path = file.path, .alignment = 1}, .fd = file.fd.get(), .owned = UniqueFd()});
  }
  return result;
}

const UringSystem& System() {
  static const UringSystem system;
  return system;
}

std::unique_ptr<RowReader> Create(std::vector<UringFile> files, uint32_t rings, uint32_t depth,
                                  const UringSystem& system = System()) {
  auto reader = CreateUringReader(std::move(files), {.rings = rings, .depth = depth, .how = "as tested"}, system);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? *std::move(reader) : nullptr;
}

// Random reads, their destinations and what these must hold.
struct RandomReads {
  RandomReads(const Pattern& files, size_t count, uint64_t seed) : pattern(files) {
    std::mt19937_64 random(seed);
    destinations.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const FileIndex file = static_cast<FileIndex>(random() % 2);
      const uint64_t size = pattern.bytes[file].size();
      const uint64_t offset = random() % size;
      const uint64_t most = random() % 100 == 0 ? 40000 : 400;
      const uint32_t bytes = static_cast<uint32_t>(1 + random() % std::min<uint64_t>(most, size - offset));
      destinations[i].resize(bytes);
      reads.push_back(
          {.id = 1000 + i, .file = file, .offset = offset, .bytes = bytes, .destination = destinations[i].data()});
    }
  }
  void ExpectAllRead(absl::Span<const RowReadResult> results) const {
    std::set<uint64_t> ids;
    for (const RowReadResult& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_TRUE(ids.insert(result.id).second);
    }
    EXPECT_EQ(ids.size(), reads.size());
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto first = pattern.bytes[reads[i].file].begin() + static_cast<ptrdiff_t>(reads[i].offset);
      EXPECT_TRUE(std::equal(destinations[i].begin(), destinations[i].end(), first)) << i;
    }
  }
  const Pattern& pattern;
  std::vector<RowRead> reads;
  std::vector<std::vector<std::byte>> destinations;
};

// Folder of the files (empty: the temporary one), and whether they are opened with O_DIRECT.
class UringReaderTest : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override {
    const std::string dir = std::get<0>(GetParam()).empty() ? testing::TempDir() : std::get<0>(GetParam());
    if (::access(dir.c_str(), W_OK) != 0) GTEST_SKIP() << dir << " is not there";
    pattern_ = std::make_unique<Pattern>(dir);
    if (!KernelHasUring()) GTEST_SKIP() << "this kernel refuses io_uring";
    if (!std::get<1>(GetParam())) return;
    if (const auto direct = OpenDirect(pattern_->files[0], System()); !direct.ok()) GTEST_SKIP() << direct.status();
  }

  std::vector<UringFile> Files() const {
    if (!std::get<1>(GetParam())) return Buffered(pattern_->files);
    std::vector<UringFile> result;
    for (const CheckpointFile& file : pattern_->files) {
      DirectFile direct = OpenDirect(file, System()).value();
      const int fd = direct.fd.get();
      result.push_back(
          {.about = {.path = file.path, .alignment = direct.alignment}, .fd = fd, .owned = std::move(direct.fd)});
    }
    return result;
  }

  std::unique_ptr<Pattern> pattern_;
};

TEST_P(UringReaderTest, EveryReadGetsItsBytesAndOneResultUnderItsOwnId) {
  for (const auto& [rings, depth] : {std::pair(1u, 128u), std::pair(1u, 3u), std::pair(3u, 16u)}) {
    const auto reader = Create(Files(), rings, depth);
    RandomReads random(*pattern_, 3000, 7 + depth);
    ResultSink sink;
    size_t first = 0;
    for (size_t count = 1; first < random.reads.size(); count = count * 2 % 509) {
      reader->Submit(absl::MakeConstSpan(random.reads).subspan(first, count), sink.fn());
      first += count;
    }
    random.ExpectAllRead(sink.Await(random.reads.size()));
    const RowReaderStats stats = reader->stats();
    EXPECT_EQ(stats.reads_in_flight, 0u);
    uint64_t bytes = 0;
    for (const RowRead& read : random.reads) bytes += read.bytes;
    EXPECT_EQ(stats.bytes_used, bytes);
    EXPECT_GT(stats.bytes_read, 0u);
  }
}

TEST_P(UringReaderTest, ManyThreadsSubmitAtOnce) {
  const auto reader = Create(Files(), 2, 32);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i, &reader] {
      RandomReads random(*pattern_, 400, 100 + i);
      ResultSink sink;
      for (size_t first = 0; first < 400; first += 16) {
        reader->Submit(absl::MakeConstSpan(random.reads).subspan(first, 16), sink.fn());
      }
      random.ExpectAllRead(sink.Await(400));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(UringReaderTest, TheLastRowIsReadAndTheOnePastTheEndFailsAloneAndNamesFileAndOffset) {
  const auto reader = Create(Files(), 1, 8);
  std::vector<std::byte> last(9);
  std::vector<std::byte> past(10);
  const std::vector<RowRead> reads = {{.id = 1, .file = 1, .offset = 70090, .bytes = 9, .destination = last.data()},
                                      {.id = 2, .file = 1, .offset = 70090, .bytes = 10, .destination = past.data()}};
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  for (const RowReadResult& result : sink.Await(2)) {
    if (result.id == 1) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    } else {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(result.status.message()), AllOf(HasSubstr("file1"), HasSubstr("offset 70099")));
    }
  }
  EXPECT_TRUE(std::equal(last.begin(), last.end(), pattern_->bytes[1].end() - 9));
}

TEST_P(UringReaderTest, AFileTruncatedWhileOpenIsDataLoss) {
  const auto reader = Create(Files(), 1, 8);
  ASSERT_EQ(::ftruncate(pattern_->files[0].fd.get(), 5000), 0);
  std::vector<std::byte> row(100);
  const RowRead read{.id = 1, .file = 0, .offset = 4950, .bytes = 100, .destination = row.data()};
  ResultSink sink;
  reader->Submit(absl::MakeConstSpan(&read, 1), sink.fn());
  EXPECT_EQ(sink.Await(1)[0].status.code(), absl::StatusCode::kDataLoss);
}

TEST_P(UringReaderTest, ACallbackMaySubmitMore) {
  const auto reader = Create(Files(), 1, 2);
  RandomReads random(*pattern_, 50, 3);
  ResultSink sink;
  const RowReader::ResultFn deliver = sink.fn();
  size_t next = 1;
  std::function<void(absl::Span<const RowReadResult>)> chain = [&](absl::Span<const RowReadResult> results) {
    if (next < random.reads.size()) reader->Submit(absl::MakeConstSpan(&random.reads[next++], 1), chain);
    deliver(results);
  };
  reader->Submit(absl::MakeConstSpan(random.reads.data(), 1), chain);
  random.ExpectAllRead(sink.Await(random.reads.size()));
}

INSTANTIATE_TEST_SUITE_P(Files, UringReaderTest, testing::Combine(testing::Values("", "/dev/shm"), testing::Bool()),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).empty() ? "Temp" : "Shm") +
                                  (std::get<1>(of.param) ? "Direct" : "Buffered");
                         });

}  // namespace
}  // namespace pleiad
