#include "tests/support/rows/scripted_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/rows/pread_reader.h"
#include "tests/core/rows/row_files.h"

namespace pleiad {
namespace {

std::vector<CheckpointFile> OneFile() {
  std::vector<CheckpointFile> files;
  files.push_back(FileOf(PatternBytes(100, 5), "f"));
  return files;
}

TEST(ScriptedReaderTest, EachReadMeetsItsScriptedEnd) {
  const std::vector<CheckpointFile> files = OneFile();
  std::vector<std::byte> rows(60);
  std::vector<RowRead> reads;
  for (uint64_t i = 0; i < 6; ++i) {
    reads.push_back({.id = i, .file = 0, .offset = 10 * i, .bytes = 10, .destination = rows.data() + 10 * i});
  }
  const ReadFault faults[] = {ReadFault::kNone, ReadFault::kError, ReadFault::kShort,
                              ReadFault::kHold, ReadFault::kNever, ReadFault::kHold};
  ResultSink sink;
  {
    ScriptedReader reader(CreatePreadReader(files, 1), [&](const RowRead&, size_t ordinal) { return faults[ordinal]; });
    reader.Submit(reads, sink.fn());
    for (const RowReadResult& result : sink.Await(3)) {
      EXPECT_EQ(result.status.code(), result.id == 0 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
    }
    reader.AwaitHeld(3);
    EXPECT_EQ(sink.size(), 3u);
    reader.Release(ScriptedReader::Order::kReversed);
    const std::vector<RowReadResult> results = sink.Await(5);
    EXPECT_EQ(results[3].id, 5u);
    EXPECT_EQ(results[4].id, 3u);
    EXPECT_TRUE(results[3].status.ok() && results[4].status.ok());
  }
  const std::vector<RowReadResult> results = sink.Await(6);
  EXPECT_EQ(results.size(), 6u);
  EXPECT_EQ(results[5].id, 4u);
  EXPECT_TRUE(absl::IsCancelled(results[5].status));
}

}  // namespace
}  // namespace pleiad
