#include "tests/support/process/resident_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>

namespace pleiad::testing {
namespace {

constexpr uint32_t kWarm = 50000, kCycles = 200000;

// As little as a forgotten map entry of each cycle shows.
TEST(MemoryGrowthTest, WhatEachCycleKeepsIsBeyondTheBound) {
  std::vector<std::unique_ptr<char[]>> kept;
  kept.reserve(kCycles);
  const MemoryGrowth growth =
      MeasureGrowth(::getpid(), kWarm, kCycles, 1, [&](uint32_t) { kept.push_back(std::make_unique<char[]>(48)); });
  std::cout << growth << "\n";
  EXPECT_GT(growth.bytes(), kMaxGrowthBytes);
}

TEST(MemoryGrowthTest, WhatEachCycleGivesBackIsWithinIt) {
  std::unique_ptr<char[]> last;
  const MemoryGrowth growth =
      MeasureGrowth(::getpid(), kWarm, kCycles, 1, [&](uint32_t) { last = std::make_unique<char[]>(48); });
  std::cout << growth << "\n";
  if (!kSanitized) {
    EXPECT_LE(growth.bytes(), kMaxGrowthBytes);
  }
}

// What is kept before the warm-up is over does not count.
TEST(MemoryGrowthTest, TheWarmUpIsFree) {
  std::vector<std::unique_ptr<char[]>> kept;
  const MemoryGrowth growth = MeasureGrowth(::getpid(), kWarm, 2 * kWarm, 100, [&](uint32_t done) {
    if (done < kWarm) kept.push_back(std::make_unique<char[]>(100 * 256));
  });
  EXPECT_LE(growth.bytes(), kMaxGrowthBytes);
}

TEST(MemoryGrowthTest, AProcessThatIsNotThereHasNone) { EXPECT_EQ(ResidentBytes(-1), 0u); }

}  // namespace
}  // namespace pleiad::testing
