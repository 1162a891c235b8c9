#include "core/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/support/cpu_device_test.h"

namespace pleiad {
namespace {

class ThreadPoolTest : public testing::CpuDeviceTest {};

TEST_F(ThreadPoolTest, EveryIndexIsVisitedOnce) {
  for (size_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (size_t n : {0, 1, 2, 7, 64, 1000}) {
      for (size_t grain : {1, 3, 64}) {
        std::vector<int> visits(n, 0);
        pool.ParallelFor(n, grain, [&](size_t worker, size_t begin, size_t end) {
          EXPECT_LT(worker, pool.threads());
          EXPECT_LE(end - begin, grain);
          for (size_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_EQ(visits, std::vector<int>(n, 1));
      }
    }
  }
}

// Each job reads what the one before wrote: a helper that came late or left early would show.
TEST_F(ThreadPoolTest, JobsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<uint64_t> values(257, 1);
  for (int job = 0; job < 2000; ++job) {
    std::vector<uint64_t> next(values.size());
    pool.ParallelFor(values.size(), 16, [&](size_t, size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) next[i] = values[i] + values[(i + 1) % values.size()];
    });
    values.swap(next);
  }
  // All were equal and doubled each time, modulo 2^64.
  EXPECT_EQ(values, std::vector<uint64_t>(values.size(), 0));
}

TEST_F(ThreadPoolTest, RangesOfOneWorkerDoNotOverlap) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  for (int job = 0; job < 200; ++job) {
    pool.ParallelFor(64, 1, [&](size_t worker, size_t, size_t) {
      EXPECT_EQ(inside[worker].fetch_add(1), 0);
      inside[worker].fetch_sub(1);
    });
  }
}

// A helper must come: the caller's range waits for the other one.
TEST_F(ThreadPoolTest, SleepingHelpersAreWoken) {
  ThreadPool pool(2);
  for (int job = 0; job < 50; ++job) {
    std::atomic<int> arrived{0};
    pool.ParallelFor(2, 1, [&](size_t, size_t, size_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

}  // namespace
}  // namespace pleiad
