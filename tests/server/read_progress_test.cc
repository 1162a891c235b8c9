#include "server/read_progress.h"

#include <gtest/gtest.h>

namespace pleiad {
namespace {

constexpr uint64_t kSecondOfBytes = ReadProgress::kBytesPerSecond;

class ReadProgressTest : public ::testing::Test {
 protected:
  ReadProgressTest() { progress_.Begin(now_); }
  bool TooSlowAfter(absl::Duration wait) {
    now_ += wait;
    return progress_.TooSlow(now_);
  }

  absl::Time now_ = absl::UnixEpoch();
  ReadProgress progress_;
};

TEST_F(ReadProgressTest, AnAnswerIsGivenItsTimeAndPatience) {
  progress_.Sending(7 * kSecondOfBytes);
  EXPECT_FALSE(TooSlowAfter(ReadProgress::kPatience + absl::Milliseconds(6999)));
  EXPECT_TRUE(TooSlowAfter(absl::Milliseconds(1)));
}

TEST_F(ReadProgressTest, TheLeastRateIsFastEnoughForEver) {
  for (int i = 0; i < 1000; ++i) {
    progress_.Sending(4 * kSecondOfBytes);
    ASSERT_FALSE(TooSlowAfter(absl::Seconds(4))) << i;
    progress_.Taken(now_);
  }
}

TEST_F(ReadProgressTest, BelowItTheClientFallsBehind) {
  // A quarter of every second, until there is no patience left for what it takes in one.
  for (int i = 0; i < 19; ++i) {
    progress_.Sending(3 * kSecondOfBytes / 4);
    ASSERT_FALSE(TooSlowAfter(absl::Seconds(1))) << i;
    progress_.Taken(now_);
  }
  progress_.Sending(3 * kSecondOfBytes / 4);
  EXPECT_TRUE(TooSlowAfter(absl::Seconds(1)));
}

TEST_F(ReadProgressTest, SmallAnswersNowAndThenAreTooSlow) {
  progress_.Sending(100);
  EXPECT_FALSE(TooSlowAfter(absl::Seconds(4)));
  progress_.Taken(now_);
  progress_.Sending(100);
  EXPECT_TRUE(TooSlowAfter(absl::Seconds(2)));
}

TEST_F(ReadProgressTest, WhatIsTakenFasterDoesNotCountForLater) {
  progress_.Sending(1000 * kSecondOfBytes);
  progress_.Taken(now_);
  progress_.Sending(0);
  EXPECT_FALSE(TooSlowAfter(ReadProgress::kPatience - absl::Milliseconds(1)));
  EXPECT_TRUE(TooSlowAfter(absl::Milliseconds(1)));
}

TEST_F(ReadProgressTest, AClientThatReadsAgainIsJudgedByWhatItTakesThen) {
  progress_.Sending(1);
  EXPECT_TRUE(TooSlowAfter(absl::Hours(1)));
  progress_.Taken(now_);
  progress_.Sending(2 * kSecondOfBytes);
  EXPECT_FALSE(TooSlowAfter(absl::Seconds(1)));
}

}  // namespace
}  // namespace pleiad
