#include "server/region_copier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace pleiad {
namespace {

TEST(RegionCopierTest, EveryByteIsCopiedOnceWhateverTheSizeAndTheThreads) {
  for (const size_t threads : {1, 2, 4}) {
    RegionCopier copier(threads);
    for (const uint64_t bytes : {0, 1, 262144, 262145, 1 << 20, (1 << 20) + 1, 5000000}) {
      std::vector<std::atomic<uint8_t>> copied(bytes);
      EXPECT_TRUE(copier
                      .Copy(bytes,
                            [&](uint64_t begin, uint64_t end) {
                              for (uint64_t i = begin; i < end; ++i) copied.at(i).fetch_add(1);
                              return absl::OkStatus();
                            })
                      .ok());
      size_t wrong = 0;
      for (const auto& times : copied) wrong += times.load() == 1 ? 0 : 1;
      EXPECT_EQ(wrong, 0u) << threads << " threads, " << bytes << " bytes";
    }
  }
}

TEST(RegionCopierTest, LargeOnesAreCopiedBySeveralThreadsAtOnce) {
  RegionCopier copier(2);
  Mutex mutex;
  CondVar changed;
  std::set<std::thread::id> inside;
  EXPECT_TRUE(copier
                  .Copy(1 << 20,
                        [&](uint64_t, uint64_t) {
                          MutexLock lock(&mutex);
                          inside.insert(std::this_thread::get_id());
                          changed.NotifyAll();
                          while (inside.size() < 2) changed.Wait(&mutex);
                          return absl::OkStatus();
                        })
                  .ok());
  EXPECT_EQ(inside.size(), 2u);
}

TEST(RegionCopierTest, TheFirstPartThatFailedIsTold) {
  RegionCopier copier(4);
  const absl::Status status = copier.Copy(4 << 20, [](uint64_t begin, uint64_t end) {
    return end <= (3 << 20) ? absl::OkStatus() : absl::DataLossError(absl::StrCat(begin));
  });
  EXPECT_EQ(status, absl::DataLossError(absl::StrCat(3 << 20)));
  EXPECT_TRUE(copier.Copy(4 << 20, [](uint64_t, uint64_t) { return absl::OkStatus(); }).ok());
}

// One caller has the threads, the others copy all by themselves.
TEST(RegionCopierTest, CallersDoNotWaitForEachOther) {
  RegionCopier copier(2);
  std::atomic<uint64_t> inner{0};
  EXPECT_TRUE(copier
                  .Copy(1 << 20,
                        [&](uint64_t, uint64_t) {
                          return copier.Copy(1 << 20, [&](uint64_t begin, uint64_t end) {
                            inner += end - begin;
                            return absl::OkStatus();
                          });
                        })
                  .ok());
  EXPECT_EQ(inner, uint64_t{4} << 20);
  std::vector<std::thread> callers;
  std::atomic<uint64_t> copied{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const absl::Status status = copier.Copy(600000, [&](uint64_t begin, uint64_t end) {
          copied += end - begin;
          return absl::OkStatus();
        });
        EXPECT_TRUE(status.ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(copied, uint64_t{600000} * 200);
}

}  // namespace
}  // namespace pleiad
