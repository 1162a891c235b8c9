// The io_uring reader where reads never end, the kernel refuses, or the reader stops. Pipes stand in for a slow disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <set>

#include "core/rows/uring_reader.h"
#include "tests/core/rows/kernel_support.h"
#include "tests/core/rows/row_files.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  void Write(const std::string& text) {
    EXPECT_EQ(::write(write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  UniqueFd read;
  UniqueFd write;
};

class UringReaderStopTest : public testing::Test {
 protected:
  // File 0 has no bytes yet, file 1 has four.
  UringReaderStopTest() { ready_.Write("abcd"); }

  void SetUp() override {
    if (!KernelHasUring()) GTEST_SKIP() << "this kernel refuses io_uring";
  }

  absl::StatusOr<std::unique_ptr<RowReader>> Create(const UringReaderOptions& options) {
    std::vector<UringFile> files;
    files.push_back({.about = {.path = "stalled", .alignment = 1}, .fd = stalled_.read.get(), .owned = UniqueFd()});
    files.push_back({.about = {.path = "ready", .alignment = 1}, .fd = ready_.read.get(), .owned = UniqueFd()});
    return CreateUringReader(std::move(files), options, system_);
  }

  // Stalled reads with ids 0 .. count - 1 and, last, one of the ready file.
  std::vector<RowRead> Reads(uint64_t count) {
    std::vector<RowRead> reads;
    rows_.resize(4 * (count + 1));
    for (uint64_t i = 0; i <= count; ++i) {
      // Far apart, so that none are joined.
      reads.push_back({.id = i,
                       .file = i < count ? 0u : 1u,
                       .offset = i < count ? i * 100 : 0,
                       .bytes = 4,
                       .destination = rows_.data() + 4 * i});
    }
    return reads;
  }

  Pipe stalled_;
  Pipe ready_;
  UringSystem system_;
  std::vector<std::byte> rows_;
};

TEST_F(UringReaderStopTest, AStalledReadDelaysNoOther) {
  const auto reader = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
  const std::vector<RowRead> reads = Reads(1);
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  EXPECT_EQ(sink.Await(1)[0].id, 1u);
  EXPECT_EQ(reader->stats().reads_in_flight, 1u);
  stalled_.Write("late");
  const std::vector<RowReadResult> results = sink.Await(2);
  EXPECT_EQ(results[1].id, 0u);
  EXPECT_TRUE(results[1].status.ok()) << results[1].status;
  EXPECT_EQ(std::memcmp(rows_.data(), "lateabcd", 8), 0);
}

TEST_F(UringReaderStopTest, StoppingCancelsReadsThatNeverEndAndThoseBehindThemAndDropsNone) {
  auto reader = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
  const std::vector<RowRead> reads = Reads(3);
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  sink.Await(1);  // the ready one: by now the others are with the kernel
  std::vector<RowRead> more(20, reads[0]);
  for (size_t i = 0; i < more.size(); ++i) more[i].id = 100 + i;
  reader->Submit(more, sink.fn());
  reader.reset();
  std::set<uint64_t> ids;
  for (const RowReadResult& result : sink.Await(24)) {
    EXPECT_TRUE(ids.insert(result.id).second);
    EXPECT_EQ(absl::IsCancelled(result.status), result.id != 3) << result.id << " " << result.status;
  }
  EXPECT_EQ(ids.size(), 24u);
}

TEST_F(UringReaderStopTest, ASubmitWhileStoppingIsCancelledAtOnce) {
  auto owner = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
  RowReader* const reader = owner.get();
  const std::vector<RowRead> reads = Reads(1);
  ResultSink sink;
  std::atomic<int> inside{0};
  // Called while the reader stops: the stalled read is cancelled.
  reader->Submit(absl::MakeConstSpan(reads).first(1), [&](absl::Span<const RowReadResult> results) {
    EXPECT_TRUE(absl::IsCancelled(results[0].status));
    reader->Submit(reads, [&](absl::Span<const RowReadResult> refused) {
      for (const RowReadResult& result : refused) inside += absl::IsCancelled(result.status) ? 1 : 0;
    });
  });
  owner.reset();
  EXPECT_EQ(inside, 2);
}

TEST_F(UringReaderStopTest, ARefusalToRegisterIsToldAndDoneWithout) {
  system_.register_buffers = [](io_uring*, const iovec*, unsigned) { return -ENOMEM; };
  system_.register_files = [](io_uring*, const int*, unsigned) { return -EMFILE; };
  const auto reader = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
  EXPECT_THAT(reader->info().detail,
              AllOf(HasSubstr("buffers of 32768 bytes not registered: Cannot allocate memory (RLIMIT_MEMLOCK)"),
                    HasSubstr("files not registered: Too many open files")));
  const std::vector<RowRead> reads = Reads(0);
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  EXPECT_TRUE(sink.Await(1)[0].status.ok());
  EXPECT_EQ(std::memcmp(rows_.data(), "abcd", 4), 0);
}

TEST_F(UringReaderStopTest, AKernelThatIsShortOfMemoryForAWhileIsAskedAgain) {
  int calls = 0;
  system_.submit_and_wait = [&calls](io_uring* ring, unsigned wait_for) {
    const int errors[] = {-EAGAIN, -EBUSY, -EINTR};
    if (++calls % 4 != 0) return errors[calls % 4 - 1];
    return ::io_uring_submit_and_wait(ring, wait_for);
  };
  const auto reader = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
  const std::vector<RowRead> reads = Reads(0);
  ResultSink sink;
  reader->Submit(reads, sink.fn());
  EXPECT_TRUE(sink.Await(1)[0].status.ok());
}

TEST_F(UringReaderStopTest, AKernelThatTakesNoMoreSubmissionsFailsReadsAndLosesNone) {
  for (const int error : {EBADF, EAGAIN}) {
    // The first submission arms the wake-up, the second hands over the reads.
    for (const int taken : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << error << " after " << taken);
      ready_.Write("abcd");
      int calls = 0;
      std::promise<void> begun;
      system_.submit_and_wait = [&, error, taken](io_uring* ring, unsigned wait_for) {
        if (++calls == 1) begun.set_value();
        return calls > taken ? -error : ::io_uring_submit_and_wait(ring, wait_for);
      };
      auto reader = Create({.rings = 1, .depth = 4, .how = "piped"}).value();
      begun.get_future().wait();
      const std::vector<RowRead> reads = Reads(1);
      ResultSink sink;
      reader->Submit(reads, sink.fn());
      if (taken == 2) {
        EXPECT_TRUE(sink.Await(1)[0].status.ok());
        stalled_.Write("late");
      }
      for (const RowReadResult& result : sink.Await(2)) {
        EXPECT_EQ(result.status.ok(), taken == 2) << result.status;
        if (!result.status.ok()) {
          EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
          EXPECT_THAT(std::string(result.status.message()), HasSubstr("failed: "));
        }
      }
      ResultSink later;
      reader->Submit(reads, later.fn());
      for (const RowReadResult& result : later.Await(2)) {
        EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
      }
    }
  }
}

}  // namespace
}  // namespace pleiad
