#include "server/spinning_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace pleiad {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(250);

class SpinningThreadTest : public ::testing::Test {
 protected:
  bool TryRun(std::function<void()> work) { return thread_.TryRun(work); }
  // Work comes often until the thread takes it.
  void Run(const std::function<void()>& work) {
    while (!TryRun(work)) std::this_thread::yield();
  }
  void AwaitSpins() {
    while (!thread_.spins()) std::this_thread::yield();
  }

  FakeClock clock_;
  SpinningThread thread_{&clock_};
};

TEST_F(SpinningThreadTest, NotStartedItTakesNothing) {
  std::function<void()> work = [] { FAIL(); };
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(thread_.TryRun(work));
  EXPECT_TRUE(work);
  EXPECT_FALSE(thread_.spins());
}

TEST_F(SpinningThreadTest, WhatIsNotToSpinIsAsNotStarted) {
  thread_.Start(absl::ZeroDuration());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(TryRun([] { FAIL(); }));
}

TEST_F(SpinningThreadTest, WorkThatComesSeldomDoesNotWakeIt) {
  thread_.Start(kSpin);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(TryRun([] { FAIL(); }));
    EXPECT_FALSE(thread_.spins());
    clock_.Advance(kSpin);
  }
}

TEST_F(SpinningThreadTest, WorkThatComesOftenIsTakenInOrderByAnotherThread) {
  thread_.Start(kSpin);
  EXPECT_FALSE(TryRun([] { FAIL(); }));
  clock_.Advance(kSpin - absl::Nanoseconds(1));
  EXPECT_FALSE(TryRun([] { FAIL(); }));
  std::vector<int> done;
  std::thread::id by;
  for (int i = 0; i < 100; ++i) {
    AwaitSpins();
    std::promise<void> ran;
    std::function<void()> work = [&] {
      done.push_back(i);
      by = std::this_thread::get_id();
      ran.set_value();
    };
    ASSERT_TRUE(thread_.TryRun(work));
    EXPECT_FALSE(work);
    ran.get_future().wait();
  }
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_NE(by, std::this_thread::get_id());
}

TEST_F(SpinningThreadTest, AtWorkItTakesNoOther) {
  thread_.Start(kSpin);
  std::promise<void> begun, end;
  Run([&] {
    begun.set_value();
    end.get_future().wait();
  });
  begun.get_future().wait();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(TryRun([] { FAIL(); }));
  end.set_value();
  AwaitSpins();
}

TEST_F(SpinningThreadTest, ItFallsAsleepWhenNoneHasComeForAsLong) {
  thread_.Start(kSpin);
  std::promise<void> ran;
  Run([&] { ran.set_value(); });
  ran.get_future().wait();
  AwaitSpins();
  clock_.Advance(kSpin);
  while (thread_.spins()) std::this_thread::yield();
  EXPECT_FALSE(TryRun([] { FAIL(); })) << "the last offer while it slept is long ago";
  EXPECT_FALSE(thread_.spins());
}

TEST_F(SpinningThreadTest, ManyOfferAndNothingIsLostOrRunTwice) {
  std::atomic<int> there = 0, here = 0;
  {
    SpinningThread thread(&clock_);
    thread.Start(kSpin);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int i = 0; i < 2000; ++i) {
          std::function<void()> work = [&there] { ++there; };
          if (!thread.TryRun(work)) ++here;
          if (i % 64 == 0) clock_.Advance(kSpin);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_EQ(there + here, 8000);
}

}  // namespace
}  // namespace pleiad
