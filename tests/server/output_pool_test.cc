#include "server/output_pool.h"

#include <gtest/gtest.h>

#include <optional>

namespace pleiad {
namespace {

constexpr uint64_t kBytes = 1 << 20;

TEST(OutputPoolTest, GivesWhatReturnedLastWhereItIsLargeEnoughAndNotOverTwiceTheSize) {
  OutputPool pool;
  std::shared_ptr<std::byte[]> first = pool.Take(kBytes), second = pool.Take(kBytes);
  const std::byte* const a = first.get();
  const std::byte* const b = second.get();
  EXPECT_NE(a, b);
  first = nullptr;
  second = nullptr;
  EXPECT_EQ(pool.kept(), 2 * kBytes);
  const std::shared_ptr<std::byte[]> half = pool.Take(kBytes / 2);
  EXPECT_EQ(half.get(), b);
  EXPECT_EQ(pool.kept(), kBytes);
  const std::shared_ptr<std::byte[]> larger = pool.Take(kBytes + 1), smaller = pool.Take(kBytes / 2 - 1);
  EXPECT_NE(larger.get(), a);
  EXPECT_NE(smaller.get(), a);
  EXPECT_EQ(pool.Take(kBytes).get(), a);
}

TEST(OutputPoolTest, KeepsNoMoreThanItsBoundAndTheNewestOfIt) {
  OutputPool pool;
  constexpr uint64_t kPart = OutputPool::kMostKept / 2;
  std::shared_ptr<std::byte[]> first = pool.Take(kPart), second = pool.Take(kPart), third = pool.Take(kPart);
  const std::byte* const newest = third.get();
  first = nullptr;
  second = nullptr;
  third = nullptr;
  EXPECT_EQ(pool.kept(), OutputPool::kMostKept);
  EXPECT_EQ(pool.Take(kPart).get(), newest);
  { const std::shared_ptr<std::byte[]> all = pool.Take(OutputPool::kMostKept + 1); }
  EXPECT_EQ(pool.kept(), OutputPool::kMostKept);
}

TEST(OutputPoolTest, LeavesSmallOutputsToTheAllocator) {
  OutputPool pool;
  { const std::shared_ptr<std::byte[]> small = pool.Take(OutputPool::kSmallest - 1); }
  EXPECT_EQ(pool.kept(), 0u);
}

TEST(OutputPoolTest, AnOutputMayOutliveThePool) {
  std::optional<OutputPool> pool(std::in_place);
  const std::shared_ptr<std::byte[]> output = pool->Take(kBytes);
  pool.reset();
  output[kBytes - 1] = std::byte{1};
  EXPECT_EQ(output[kBytes - 1], std::byte{1});
}

}  // namespace
}  // namespace pleiad
