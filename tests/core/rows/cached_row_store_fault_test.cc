// The row cache over a reader that is late, wrong or silent.
#include <numeric>

#include "tests/core/rows/cached_row_store_fixture.h"

namespace pleiad {
namespace {

using CachedRowStoreFaultTest = CachedRowStoreTest;

ReadFault Hold(const RowRead&, size_t) { return ReadFault::kHold; }

// Waits until the store's timer thread has acted on the time.
template <typename Done>
void Await(const RowStore& store, Done done) {
  while (!done(store.stats())) std::this_thread::yield();
}

TEST_F(CachedRowStoreFaultTest, AReadThatNeverEndsTimesOutAndItsBufferIsQuarantined) {
  Make(8, 4, [](const RowRead&, size_t ordinal) { return ordinal == 0 ? ReadFault::kNever : ReadFault::kNone; });
  Asked never = Ask({1});
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(4));
  EXPECT_FALSE(never.answered());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(never.answer().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(never.answer().failures.size(), 1u);
  const RowStoreStats stats = store_->stats();
  EXPECT_EQ(stats.staging_free, 3u);
  EXPECT_EQ(stats.reads_in_flight, 0u);
  EXPECT_EQ(stats.slots_arriving + stats.slots_held, 0u);
  EXPECT_EQ(Step({1}).misses, 1u) << "forgotten, so it is read again";
}

TEST_F(CachedRowStoreFaultTest, AQuarantinedBufferReturnsWhenItsLateReadEndsAndFeedsNobody) {
  Make(8, 2, Hold);
  Asked late = Ask({1});
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(5));
  Await(*store_, [](const RowStoreStats& stats) { return stats.staging_quarantined == 1; });
  Asked again = Ask({1});
  EXPECT_FALSE(again.answered());
  reader_->Release(ScriptedReader::Order::kSubmitted);
  ASSERT_TRUE(again.answered());
  EXPECT_TRUE(again.answer().status.ok());
  EXPECT_EQ(again.answer().counts.misses, 1u);
  Enqueue(again);
  RunStream();
  EXPECT_EQ(store_->stats().staging_quarantined, 0u);
  EXPECT_EQ(store_->stats().staging_free, 2u);
}

TEST_F(CachedRowStoreFaultTest, AReadIsNotLateForThoseBeforeIt) {
  Make(8, 1000, [](const RowRead&, size_t ordinal) { return ordinal == 0 ? ReadFault::kNever : ReadFault::kHold; });
  Asked never = Ask({0}, ResolvePurpose::kStep, LayerOrdinal(1));
  std::vector<uint64_t> rows(900);
  std::iota(rows.begin(), rows.end(), 0);
  Asked many = Ask(rows);
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(3));
  reader_->Release(ScriptedReader::Order::kSubmitted, 600);
  clock_.Advance(absl::Seconds(3));
  Await(*store_, [](const RowStoreStats& stats) { return stats.staging_quarantined > 0; });
  EXPECT_EQ(store_->stats().staging_quarantined, 1u);
  reader_->Release(ScriptedReader::Order::kSubmitted);
  EXPECT_TRUE(many.answer().status.ok());
  Enqueue(many);
  RunStream();
}

TEST_F(CachedRowStoreFaultTest, WhereNothingMovesAllReadsAreLateAtOnce) {
  Make(8, 1000, [](const RowRead&, size_t) { return ReadFault::kNever; });
  std::vector<uint64_t> rows(900);
  std::iota(rows.begin(), rows.end(), 0);
  Asked many = Ask(rows);
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(many.answer().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_->stats().staging_quarantined, 900u);
}

TEST_F(CachedRowStoreFaultTest, APlanThatQuarantineLeavesNoStagingForFailsInsteadOfWaiting) {
  Make(8, 2, [](const RowRead&, size_t) { return ReadFault::kNever; });
  Asked never = Ask({1});
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(5));
  Await(*store_, [](const RowStoreStats& stats) { return stats.staging_quarantined == 1; });
  Asked two = Ask({2, 3});
  ASSERT_TRUE(two.answered());
  EXPECT_EQ(two.answer().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_->stats().plans_waiting, 0u);
}

TEST_F(CachedRowStoreFaultTest, ASlowReadDelaysOnlyThePlansThatNeedIt) {
  Make(8, 16, [](const RowRead& read, size_t) {
    return read.offset == 1 * kLabelBytes ? ReadFault::kHold : ReadFault::kNone;
  });
  Asked slow = Ask({1, 2});
  EXPECT_EQ(Step({2, 3}).joins, 1u);
  EXPECT_EQ(Step({2, 3, 4}).hits, 2u);
  EXPECT_FALSE(slow.answered());
  reader_->Release(ScriptedReader::Order::kSubmitted);
  ASSERT_TRUE(slow.answered());
  EXPECT_EQ(Enqueue(slow), 1u);
  RunStream();
}

TEST_F(CachedRowStoreFaultTest, ThreeFailedReadsInARowAreUnhealthyAndAProbeBringsHealthBack) {
  bool broken = true;
  Make(8, 16, [&](const RowRead&, size_t) { return broken ? ReadFault::kError : ReadFault::kNone; });
  Ask({1});
  Ask({2});
  EXPECT_TRUE(health_.empty());
  Ask({3});
  ASSERT_EQ(health_.size(), 1u);
  EXPECT_EQ(health_[0].code(), absl::StatusCode::kDataLoss);
  Ask({4});
  EXPECT_EQ(health_.size(), 1u) << "told once";
  EXPECT_EQ(store_->stats().read_errors, 4u);
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(1));  // a probe fails
  Await(*store_, [&](const RowStoreStats&) { return reader_->submitted() == 5; });
  broken = false;
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(1));
  Await(*store_, [&](const RowStoreStats&) { return reader_->submitted() == 6; });
  store_.reset();  // joins the thread that told
  ASSERT_EQ(health_.size(), 2u);
  EXPECT_TRUE(health_[1].ok());
}

TEST_F(CachedRowStoreFaultTest, FailuresBetweenGoodReadsAreNotInARow) {
  Make(8, 16, [](const RowRead&, size_t ordinal) { return ordinal % 3 == 2 ? ReadFault::kNone : ReadFault::kError; });
  for (uint64_t row = 0; row < 30; ++row) Ask({row});
  EXPECT_EQ(store_->stats().read_errors, 20u);
  EXPECT_TRUE(health_.empty());
}

TEST_F(CachedRowStoreFaultTest, OneFailedReadAmongManyLetsTheOthersBeKept) {
  Make(8, 16, [](const RowRead& read, size_t ordinal) {
    return read.offset == 3 * kLabelBytes && ordinal < 2 ? ReadFault::kShort : ReadFault::kNone;
  });
  Asked fails = Ask({3, 4});
  EXPECT_FALSE(fails.answer().status.ok());
  EXPECT_EQ(Step({4, 3}).misses, 2u);
  EXPECT_EQ(Step({4, 3}).hits, 2u);
}

TEST_F(CachedRowStoreFaultTest, ReadsHaveTheirTurnInTheOrderTheReaderTakesThem) {
  Make(0, 1024, Hold);
  std::vector<uint64_t> rows;
  for (uint64_t row = 600; row > 0; --row) rows.push_back(row);  // named from the end of the file
  Asked asked = Ask(std::move(rows));
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(4));
  reader_->Release(ScriptedReader::Order::kSubmitted, 512);
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(2));  // the rest have had two seconds
  clock_.AwaitWaiterAnew();
  EXPECT_FALSE(asked.answered());
  EXPECT_EQ(store_->stats().read_errors, 0u);
  reader_->Release(ScriptedReader::Order::kSubmitted);
  EXPECT_TRUE(asked.answer().status.ok());
}

}  // namespace
}  // namespace pleiad
