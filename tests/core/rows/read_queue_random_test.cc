// A queue under a kernel that answers in any order, short, with errors and twice, against what each read must become.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/rows/read_queue.h"
#include "core/rows/read_window.h"
#include "tests/core/rows/scripted_kernel.h"

namespace pleiad {
namespace {

constexpr size_t kFileBytes = 60000 + 77;
constexpr int kFiles = 2;

enum class Stopping { kNever, kHalfway };

class RandomRun {
 public:
  RandomRun(uint64_t seed, uint32_t alignment, Stopping stopping)
      : random_(seed),
        stopping_(stopping),
        kernel_({kFileBytes, kFileBytes}, alignment,
                {.depth = 1 + static_cast<uint32_t>(seed % 9), .buffer_bytes = 8192, .join_bytes = 4096}) {
    for (int i = 0; i < 6; ++i) bad_.insert({static_cast<FileIndex>(random_() % kFiles), random_() % 118});
  }

  void Run() {
    constexpr size_t kReads = 400;
    for (size_t i = 0; i < kReads; ++i) {
      const uint32_t bytes = random_() % 50 == 0 ? 20000 : 1 + static_cast<uint32_t>(random_() % 900);
      rows_.Add(static_cast<FileIndex>(random_() % kFiles), random_() % (kFileBytes + 200), bytes);
    }
    size_t added = 0;
    while (added < kReads || !kernel_.queue().idle()) {
      if (added < kReads && random_() % 4 == 0) {
        const size_t count = std::min<size_t>(1 + random_() % 40, kReads - added);
        kernel_.queue().Add(rows_.reads().subspan(added, count), calls_, kernel_.finished());
        for (size_t i = 0; i < count; ++i) call_of_[added + i] = calls_;
        ++calls_;
        added += count;
      }
      kernel_.Take();
      if (stopping_ == Stopping::kHalfway && !stopped_ && added > kReads / 2) {
        kernel_.queue().Stop(kernel_.finished());
        stopped_ = true;
      }
      if (!kernel_.with_kernel().empty()) CompleteOne();
      Disturb();
      Check();
    }
    EXPECT_EQ(results_.size(), kReads);
    EXPECT_EQ(kernel_.queue().in_flight(), 0u);
    EXPECT_GE(kernel_.queue().bytes_used(), bytes_ok_);
  }

 private:
  // First bad byte within the operation, counted from its start; its length where there is none.
  uint32_t CleanBytes(const ReadOp& op) const {
    for (uint64_t block = op.offset / 512; block * 512 < op.offset + op.bytes; ++block) {
      if (bad_.count({op.file, block}) == 0) continue;
      return block * 512 <= op.offset ? 0 : static_cast<uint32_t>(block * 512 - op.offset);
    }
    return op.bytes;
  }

  void CompleteOne() {
    const size_t index = random_() % kernel_.with_kernel().size();
    const ReadOp op = kernel_.with_kernel()[index];
    int32_t result = kernel_.Whole(op);
    // Never so many passing faults in a row that the queue may give up.
    int& faults = faults_[op.user_data & 0xFFFFFFFF];
    const uint32_t clean = CleanBytes(op);
    if (result > static_cast<int32_t>(clean)) {
      result = clean > 0 && random_() % 2 == 0 ? static_cast<int32_t>(clean) : -EIO;
    } else if (faults < 2 && random_() % 3 == 0) {
      ++faults;
      const int32_t kinds[] = {-EAGAIN, -EINTR, -EIO, static_cast<int32_t>(1 + random_() % std::max(result, 1))};
      result = result == 0 ? -EAGAIN : kinds[random_() % 4];
    } else {
      faults = 0;
    }
    kernel_.Complete(index, result);
    old_.push_back(op.user_data);
  }

  // Completions of the past once more.
  void Disturb() {
    if (old_.empty() || random_() % 2 == 0) return;
    const uint64_t user_data = old_[random_() % old_.size()];
    const int32_t result = static_cast<int32_t>(random_() % 1024) - 100;
    const size_t before = kernel_.finished().size();
    EXPECT_EQ(kernel_.queue().Complete(user_data, result, kernel_.finished()), ReadQueue::Match::kStale);
    EXPECT_EQ(kernel_.finished().size(), before);
  }

  bool MustSucceed(const RowRead& read) const {
    if (read.offset + read.bytes > kFileBytes) return false;
    for (uint64_t block = read.offset / 512; block * 512 < read.offset + read.bytes; ++block) {
      if (bad_.count({read.file, block}) > 0) return false;
    }
    return true;
  }

  void Check() {
    for (const FinishedRead& finished : kernel_.finished()) {
      const uint64_t id = finished.result.id;
      ASSERT_TRUE(results_.insert(id).second) << "a second result of " << id;
      EXPECT_EQ(finished.call, call_of_[id]);
      const absl::Status& status = finished.result.status;
      const RowRead& read = rows_.reads()[id];
      if (stopped_ && absl::IsCancelled(status)) continue;
      EXPECT_EQ(status.ok(), MustSucceed(read)) << "read " << id << " " << read.offset << " " << status;
      if (status.ok()) {
        EXPECT_TRUE(rows_.Holds(id, kernel_)) << "read " << id;
        bytes_ok_ += read.bytes;
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      }
    }
    kernel_.finished().clear();
  }

  std::mt19937_64 random_;
  const Stopping stopping_;
  ScriptedKernel kernel_;
  Rows rows_;
  std::set<std::pair<FileIndex, uint64_t>> bad_;  // blocks of 512 bytes that never read
  std::map<uint64_t, int> faults_;                // in a row, by slot
  std::vector<uint64_t> old_;
  uint32_t calls_ = 0;
  std::map<uint64_t, uint32_t> call_of_;
  std::set<uint64_t> results_;
  uint64_t bytes_ok_ = 0;
  bool stopped_ = false;
};

TEST(ReadQueueRandomTest, EveryReadBecomesWhatItsFileSays) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun(seed, seed % 2 == 0 ? 512 : 1, Stopping::kNever).Run();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ReadQueueRandomTest, StoppingHalfwayLosesNoResult) {
  for (uint64_t seed = 100; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun(seed, seed % 2 == 0 ? 512 : 1, Stopping::kHalfway).Run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pleiad
