#include "core/rows/read_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/rows/read_fully.h"
#include "core/rows/read_window.h"
#include "tests/core/rows/scripted_kernel.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ReadQueueOptions kOptions{.depth = 4, .buffer_bytes = 8192, .join_bytes = 4096};

std::string MessageOf(const FinishedRead& finished) { return std::string(finished.result.status.message()); }

TEST(ReadQueueTest, AWindowIsTheSmallestAlignedOneThatCoversTheRow) {
  for (const uint64_t alignment : {1u, 512u, 4096u}) {
    for (const uint64_t offset : {0u, 1u, 192u, 193u, 511u, 512u, 4000u, 4096u}) {
      for (const uint64_t bytes : {1u, 320u, 512u, 700u}) {
        const ReadWindow window = CoveringWindow(offset, bytes, alignment);
        EXPECT_EQ(window.offset % alignment, 0u);
        EXPECT_EQ(window.bytes % alignment, 0u);
        EXPECT_LE(window.offset, offset);
        EXPECT_GE(window.offset + window.bytes, offset + bytes);
        EXPECT_LT(offset - window.offset, alignment);
        EXPECT_LT(window.offset + window.bytes - (offset + bytes), alignment);
      }
    }
  }
}

TEST(ReadQueueTest, ARowInOneBlockReadsOneAndARowAcrossTwoReadsBoth) {
  ScriptedKernel kernel({100000}, 512, kOptions);
  Rows rows;
  rows.Add(0, 512 + 192, 320);
  rows.Add(0, 8192 + 193, 320);
  kernel.queue().Add(rows.reads(), 7, kernel.finished());
  ASSERT_EQ(kernel.Take(), 2u);
  EXPECT_EQ(kernel.with_kernel()[0].offset, 512u);
  EXPECT_EQ(kernel.with_kernel()[0].bytes, 512u);
  EXPECT_EQ(kernel.with_kernel()[1].offset, 8192u);
  EXPECT_EQ(kernel.with_kernel()[1].bytes, 1024u);
  kernel.RunWhole();
  ASSERT_EQ(kernel.finished().size(), 2u);
  for (const FinishedRead& finished : kernel.finished()) {
    EXPECT_EQ(finished.call, 7u);
    EXPECT_TRUE(finished.result.status.ok()) << finished.result.status;
    EXPECT_TRUE(rows.Holds(finished.result.id, kernel));
  }
  EXPECT_TRUE(kernel.queue().idle());
  EXPECT_EQ(kernel.queue().bytes_read(), 1536u);
  EXPECT_EQ(kernel.queue().bytes_used(), 640u);
}

TEST(ReadQueueTest, RowsOfWindowsThatTouchAreOneReadUpToTheBound) {
  ScriptedKernel kernel({100000, 100000}, 512, kOptions);
  Rows rows;
  rows.Add(0, 320, 100);                                                         // block 0
  rows.Add(0, 0, 320);                                                           // block 0
  rows.Add(0, 512, 320);                                                         // block 1, adjacent
  rows.Add(0, 2048, 320);                                                        // a gap of two blocks
  rows.Add(1, 1024, 320);                                                        // another file
  rows.Add(0, 0, 320);                                                           // the same row once more
  for (uint64_t block = 20; block < 29; ++block) rows.Add(0, block * 512, 512);  // nine blocks: one too many
  kernel.queue().Add(rows.reads(), 1, kernel.finished());
  kernel.Take();
  std::vector<std::pair<uint64_t, uint32_t>> windows;
  for (const ReadOp& op : kernel.with_kernel()) windows.emplace_back(op.offset, op.bytes);
  EXPECT_THAT(windows, testing::ElementsAre(std::pair(0, 1024), std::pair(2048, 512), std::pair(10240, 4096),
                                            std::pair(14336, 512)));
  kernel.RunWhole();
  ASSERT_EQ(kernel.finished().size(), rows.reads().size());
  for (const FinishedRead& finished : kernel.finished()) {
    EXPECT_TRUE(finished.result.status.ok());
    EXPECT_TRUE(rows.Holds(finished.result.id, kernel)) << finished.result.id;
  }
}

TEST(ReadQueueTest, ShortReadsOfEveryLengthAreContinued) {
  for (const uint32_t alignment : {1u, 512u}) {
    for (int32_t first = 1; first < 1024; ++first) {
      ScriptedKernel kernel({8192}, alignment, kOptions);
      Rows rows;
      rows.Add(0, 1024 + 300, 320);
      kernel.queue().Add(rows.reads(), 1, kernel.finished());
      ASSERT_EQ(kernel.Take(), 1u);
      if (first >= kernel.Whole(kernel.with_kernel()[0])) break;
      kernel.Complete(0, first);
      kernel.RunWhole();
      ASSERT_EQ(kernel.finished().size(), 1u);
      ASSERT_TRUE(kernel.finished()[0].result.status.ok()) << first << kernel.finished()[0].result.status;
      ASSERT_TRUE(rows.Holds(0, kernel)) << first;
    }
  }
}

TEST(ReadQueueTest, AShortReadThatCoversTheRowIsEnough) {
  ScriptedKernel kernel({1000}, 512, kOptions);
  Rows rows;
  rows.Add(0, 680, 320);  // the last row: its window passes the end of the file
  kernel.queue().Add(rows.reads(), 1, kernel.finished());
  ASSERT_EQ(kernel.Take(), 1u);
  kernel.Complete(0, 488);
  EXPECT_EQ(kernel.Take(), 0u);
  ASSERT_EQ(kernel.finished().size(), 1u);
  EXPECT_TRUE(kernel.finished()[0].result.status.ok());
  EXPECT_TRUE(rows.Holds(0, kernel));
}

TEST(ReadQueueTest, AtTheEndOfTheFileTheRowPastItFailsAloneAndNamesFileAndOffset) {
  for (const uint32_t alignment : {1u, 512u}) {
    ScriptedKernel kernel({512 + 330}, alignment, kOptions);
    Rows rows;
    rows.Add(0, 512, 320);
    rows.Add(0, 512 + 320, 320);
    rows.Add(0, 40960, 320);
    kernel.queue().Add(rows.reads(), 1, kernel.finished());
    kernel.RunWhole();
    ASSERT_EQ(kernel.finished().size(), 3u);
    for (const FinishedRead& finished : kernel.finished()) {
      if (finished.result.id == 0) {
        EXPECT_TRUE(finished.result.status.ok()) << finished.result.status;
        EXPECT_TRUE(rows.Holds(0, kernel));
        continue;
      }
      EXPECT_EQ(finished.result.status.code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(MessageOf(finished), finished.result.id == 1
                                         ? "file0: file ends at offset 842, 310 bytes short of the range"
                                         : "file0: file ends at offset 40960, 320 bytes short of the range");
      EXPECT_TRUE(rows.Untouched(finished.result.id));
    }
    EXPECT_TRUE(kernel.queue().idle());
  }
}

TEST(ReadQueueTest, ErrorsThatMayPassAreTriedAFewTimesAndOthersOnce) {
  for (const int error : {EINTR, EAGAIN, EIO, EBADF}) {
    for (int failures = 1; failures <= kMaxFailedReads; ++failures) {
      ScriptedKernel kernel({8192}, 512, kOptions);
      Rows rows;
      rows.Add(0, 1024, 320);
      kernel.queue().Add(rows.reads(), 1, kernel.finished());
      for (int i = 0; i < failures && kernel.Take() == 1; ++i) kernel.Complete(0, -error);
      kernel.RunWhole();
      ASSERT_EQ(kernel.finished().size(), 1u);
      const absl::Status& status = kernel.finished()[0].result.status;
      EXPECT_EQ(status.ok(), error != EBADF && failures < kMaxFailedReads) << error << " " << failures;
      if (status.ok()) {
        EXPECT_TRUE(rows.Holds(0, kernel));
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
        EXPECT_THAT(MessageOf(kernel.finished()[0]), AllOf(HasSubstr("file0"), HasSubstr("offset 1024")));
        EXPECT_TRUE(rows.Untouched(0));
      }
    }
  }
}

TEST(ReadQueueTest, AnErrorOfOneRowIsNotThatOfTheRowsItWasJoinedWith) {
  ScriptedKernel kernel({8192}, 512, kOptions);
  Rows rows;
  for (uint64_t block = 2; block < 5; ++block) rows.Add(0, block * 512 + 10, 320);
  kernel.queue().Add(rows.reads(), 1, kernel.finished());
  ASSERT_EQ(kernel.Take(), 1u);
  while (kernel.Take() > 0 || !kernel.with_kernel().empty()) {
    const ReadOp op = kernel.with_kernel()[0];
    const bool bad = op.offset <= 3 * 512 && op.offset + op.bytes > 3 * 512;
    kernel.Complete(0, bad ? -EIO : kernel.Whole(op));
  }
  ASSERT_EQ(kernel.finished().size(), 3u);
  for (const FinishedRead& finished : kernel.finished()) {
    EXPECT_EQ(finished.result.status.ok(), finished.result.id != 1) << finished.result.status;
    EXPECT_EQ(rows.Holds(finished.result.id, kernel), finished.result.id != 1);
  }
}

TEST(ReadQueueTest, MoreReadsThanDepthWaitTheirTurn) {
  ScriptedKernel kernel({1 << 20}, 512, kOptions);
  Rows rows;
  for (uint64_t i = 0; i < 100; ++i) rows.Add(0, i * 10240, 320);
  kernel.queue().Add(rows.reads(), 1, kernel.finished());
  EXPECT_EQ(kernel.Take(), 4u);
  EXPECT_EQ(kernel.Take(), 0u);
  kernel.Complete(2, kernel.Whole(kernel.with_kernel()[2]));
  EXPECT_EQ(kernel.Take(), 1u);
  kernel.RunWhole();
  EXPECT_EQ(kernel.finished().size(), 100u);
}

TEST(ReadQueueTest, ALateOrDuplicateCompletionIsNotTakenForAnotherRead) {
  const ReadQueueOptions one{.depth = 1, .buffer_bytes = 8192, .join_bytes = 4096};
  ScriptedKernel kernel({8192}, 512, one);
  Rows rows;
  rows.Add(0, 0, 320);
  rows.Add(0, 4096, 320);
  kernel.queue().Add(rows.reads(), 1, kernel.finished());
  ASSERT_EQ(kernel.Take(), 1u);
  const ReadOp first = kernel.Complete(0, -EAGAIN);
  ASSERT_EQ(kernel.Take(), 1u);  // the retry, in the same slot
  ReadQueue& queue = kernel.queue();
  EXPECT_EQ(queue.Complete(first.user_data, 512, kernel.finished()), ReadQueue::Match::kStale);
  const ReadOp retry = kernel.Complete(0, 512);
  EXPECT_EQ(kernel.finished().size(), 1u);
  EXPECT_EQ(queue.Complete(retry.user_data, 512, kernel.finished()), ReadQueue::Match::kStale);
  ASSERT_EQ(kernel.Take(), 1u);  // another row, in the same slot
  for (const uint64_t foreign : {first.user_data, retry.user_data, uint64_t{0}, uint64_t{77}, ~uint64_t{0}}) {
    EXPECT_EQ(queue.Complete(foreign, 512, kernel.finished()), ReadQueue::Match::kStale);
  }
  EXPECT_EQ(kernel.finished().size(), 1u);
  EXPECT_EQ(queue.in_flight(), 1u);
  kernel.RunWhole();
  ASSERT_EQ(kernel.finished().size(), 2u);
  EXPECT_TRUE(rows.Holds(1, kernel));
}

TEST(ReadQueueTest, StoppingCancelsWhatHasNotBegunAndLetsTheRestEnd) {
  ScriptedKernel kernel({1 << 20}, 512, kOptions);
  Rows rows;
  for (uint64_t i = 0; i < 10; ++i) rows.Add(0, i * 10240, 320);
  ReadQueue& queue = kernel.queue();
  queue.Add(rows.reads().first(9), 1, kernel.finished());
  ASSERT_EQ(kernel.Take(), 4u);
  kernel.Complete(3, 100);  // read 3 waits to be continued
  queue.Stop(kernel.finished());
  EXPECT_EQ(kernel.finished().size(), 6u);
  queue.Add(rows.reads().subspan(9), 1, kernel.finished());
  EXPECT_EQ(kernel.finished().size(), 7u);
  for (const FinishedRead& finished : kernel.finished()) {
    EXPECT_TRUE(absl::IsCancelled(finished.result.status)) << finished.result.status;
  }
  EXPECT_EQ(kernel.Take(), 0u);
  EXPECT_EQ(queue.in_flight(), 3u);
  EXPECT_FALSE(queue.idle());
  kernel.finished().clear();
  kernel.Complete(0, 512);         // read 0
  kernel.Complete(0, 100);         // read 1, short
  kernel.Complete(0, -ECANCELED);  // read 2
  ASSERT_EQ(kernel.finished().size(), 3u);
  EXPECT_TRUE(kernel.finished()[0].result.status.ok());
  EXPECT_TRUE(rows.Holds(0, kernel));
  EXPECT_TRUE(absl::IsCancelled(kernel.finished()[1].result.status));
  EXPECT_TRUE(absl::IsCancelled(kernel.finished()[2].result.status));
  EXPECT_EQ(kernel.Take(), 0u);
  EXPECT_TRUE(queue.idle());
}

TEST(ReadQueueTest, ARangeLongerThanABufferIsCutAndHasOneResult) {
  for (const uint32_t alignment : {1u, 512u}) {
    ScriptedKernel kernel({100000}, alignment, kOptions);
    Rows rows;
    rows.Add(0, 777, 70000);
    rows.Add(0, 90000, 20000);  // past the end
    kernel.queue().Add(rows.reads(), 1, kernel.finished());
    kernel.RunWhole();
    ASSERT_EQ(kernel.finished().size(), 2u);
    EXPECT_TRUE(kernel.finished()[0].result.status.ok()) << kernel.finished()[0].result.status;
    EXPECT_TRUE(rows.Holds(0, kernel));
    EXPECT_EQ(kernel.finished()[1].result.status.code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ReadQueueTest, ReadsThatCannotBeAreRefusedAndEmptyOnesAreDone) {
  ScriptedKernel kernel({8192}, 512, kOptions);
  const std::vector<RowRead> reads = {
      {.id = 1, .file = 1, .offset = 0, .bytes = 4, .destination = nullptr},
      {.id = 2, .file = 0, .offset = ~uint64_t{0} - 2, .bytes = 4, .destination = nullptr},
      {.id = 3, .file = 0, .offset = 5, .bytes = 0, .destination = nullptr}};
  kernel.queue().Add(reads, 1, kernel.finished());
  ASSERT_EQ(kernel.finished().size(), 3u);
  EXPECT_EQ(MessageOf(kernel.finished()[0]), "file index 1 of 1 files");
  EXPECT_THAT(MessageOf(kernel.finished()[1]), HasSubstr("file0"));
  EXPECT_TRUE(kernel.finished()[2].result.status.ok());
  EXPECT_EQ(kernel.Take(), 0u);
}

}  // namespace
}  // namespace pleiad
