// The rules of the row cache, one by one, with a stream that runs by hand.
#include "tests/core/rows/cached_row_store_fixture.h"

namespace pleiad {
namespace {

TEST_F(CachedRowStoreTest, ARowMissesOnceThenHits) {
  Make(8, 16);
  const RowCounts first = Step({1, 2, 1});
  EXPECT_EQ(first.misses, 2u);
  EXPECT_EQ(first.joins, 1u);  // a duplicate of a missing row
  const RowCounts second = Step({2, 1, 2, 3});
  EXPECT_EQ(second.hits, 3u);
  EXPECT_EQ(second.misses, 1u);
  EXPECT_EQ(store_->stats().staging_free, 16u);
  EXPECT_EQ(store_->stats().slots_idle, 3u);
  EXPECT_EQ(stream_->rows(), 7u);
}

TEST_F(CachedRowStoreTest, LayersDoNotShareRows) {
  Make(8, 16);
  Step({5});
  Asked other = Ask({5}, ResolvePurpose::kStep, LayerOrdinal(1));
  EXPECT_EQ(other.answer().counts.misses, 1u);
  Enqueue(other, 0, 1, LayerOrdinal(1));
  RunStream();
  EXPECT_EQ(Step({5}).hits, 1u);
}

TEST_F(CachedRowStoreTest, TheCompactMapAnswersAsTheDirectOne) {
  std::vector<uint64_t> hits;
  for (const RowMapKind kind : {RowMapKind::kDirect, RowMapKind::kCompact}) {
    Make(4, 16, nullptr, kind);
    for (uint64_t i = 0; i < 300; ++i) hits.push_back(Step({i * i % 11, i % 7, 999}).hits);
    EXPECT_EQ(stream_->wrong(), 0u);
  }
  EXPECT_TRUE(std::equal(hits.begin(), hits.begin() + 300, hits.begin() + 300));
  EXPECT_GT(store_->stats().evictions, 0u);
}

TEST_F(CachedRowStoreTest, WithoutSlotsEveryRowIsGatheredFromStaging) {
  Make(0, 16);
  EXPECT_EQ(Step({1, 2, 3, 1}).misses, 3u);
  EXPECT_EQ(Step({1}).misses, 1u);
  EXPECT_EQ(store_->stats().bypasses, 4u);
  EXPECT_EQ(store_->stats().staging_free, 16u);
}

TEST_F(CachedRowStoreTest, ASlotThatAPlanNamesIsNoVictimUntilThePlanIsEnqueued) {
  Make(2, 16);
  Step({1, 2});
  Asked holds = Ask({1, 2});
  EXPECT_EQ(store_->stats().slots_held, 2u);
  Asked late = Ask({3});  // finds no victim
  EXPECT_TRUE(late.plan->gather()[0].in_staging());
  Enqueue(late);
  Enqueue(holds);
  EXPECT_EQ(store_->stats().slots_held, 0u);
  Asked evicts = Ask({4});
  EXPECT_FALSE(evicts.plan->gather()[0].in_staging());
  Enqueue(evicts);
  RunStream();
  EXPECT_EQ(store_->stats().evictions, 1u);
}

TEST_F(CachedRowStoreTest, AnEarlierPlanHoldsWhatALaterOneAlsoNamed) {
  Make(1, 16);
  Step({1});
  Asked first = Ask({1});
  Asked second = Ask({1});
  Enqueue(second);
  EXPECT_TRUE(Ask({2}).plan->gather()[0].in_staging());
  Enqueue(first);
  RunStream();
}

TEST_F(CachedRowStoreTest, ASecondPlanJoinsTheReadOfTheFirst) {
  Make(8, 16, [](const RowRead&, size_t) { return ReadFault::kHold; });
  Asked first = Ask({1, 2});
  Asked second = Ask({2, 2});
  EXPECT_FALSE(first.answered() || second.answered());
  reader_->Release(ScriptedReader::Order::kReversed);
  ASSERT_TRUE(first.answered() && second.answered());
  EXPECT_EQ(second.answer().counts.joins, 2u);
  EXPECT_EQ(Enqueue(second), 1u);
  EXPECT_EQ(Enqueue(first), 1u);  // row 2 came with the second plan
  RunStream();
  EXPECT_EQ(store_->stats().staging_free, 16u);
}

TEST_F(CachedRowStoreTest, CancellingAPlanLeavesTheOtherWaitersTheirRead) {
  Make(8, 16, [](const RowRead&, size_t) { return ReadFault::kHold; });
  Asked first = Ask({1});
  Asked second = Ask({1});
  first.plan.reset();
  reader_->Release(ScriptedReader::Order::kSubmitted);
  EXPECT_FALSE(first.answered());
  ASSERT_TRUE(second.answered());
  Enqueue(second);
  RunStream();
  EXPECT_EQ(stream_->rows(), 1u);
}

TEST_F(CachedRowStoreTest, ARowNobodyWaitsForIsForgottenWhenItsReadEnds) {
  Make(8, 16, [](const RowRead&, size_t ordinal) { return ordinal == 0 ? ReadFault::kHold : ReadFault::kNone; });
  Ask({1}).plan.reset();
  EXPECT_EQ(store_->stats().slots_arriving, 1u);
  EXPECT_EQ(store_->stats().reads_in_flight, 1u);
  reader_->Release(ScriptedReader::Order::kSubmitted);
  EXPECT_EQ(store_->stats().slots_arriving, 0u);
  EXPECT_EQ(store_->stats().staging_free, 16u);
  EXPECT_EQ(Step({1}).misses, 1u);
}

TEST_F(CachedRowStoreTest, StagingReturnsOnlyWhenTheBatchThatUsedItIsDone) {
  Make(0, 2);
  Asked first = Ask({1, 2});
  Enqueue(first);
  first.plan.reset();
  EXPECT_EQ(store_->stats().staging_free, 0u);
  Asked waits = Ask({3});
  EXPECT_FALSE(waits.answered());
  EXPECT_EQ(store_->stats().plans_waiting, 1u);
  RunStream();
  ASSERT_TRUE(waits.answered());
  Enqueue(waits);
  RunStream();
  EXPECT_EQ(stream_->rows(), 3u);
}

TEST_F(CachedRowStoreTest, StagingIsTakenWholeAndFirstComeFirstServed) {
  Make(0, 3);
  Asked first = Ask({1, 2});
  Asked large = Ask({3, 4, 5});
  Asked small = Ask({6});  // one row is free, but the large plan came first
  EXPECT_EQ(store_->stats().staging_free, 1u) << "a plan that waits holds nothing";
  Enqueue(first);
  RunStream();
  EXPECT_TRUE(large.answered());
  EXPECT_FALSE(small.answered());
  Enqueue(large);
  RunStream();
  ASSERT_TRUE(small.answered());
  Enqueue(small);
  RunStream();
  EXPECT_EQ(stream_->rows(), 6u);
}

TEST_F(CachedRowStoreTest, APlanThatOnlyHitsPassesThoseThatWaitForStaging) {
  Make(4, 2);
  Step({1});
  Asked first = Ask({2, 3});
  Asked waits = Ask({4});
  Asked hits = Ask({1});
  EXPECT_FALSE(waits.answered());
  EXPECT_TRUE(hits.answered());
  Enqueue(hits);
  Enqueue(first);
  RunStream();
  EXPECT_TRUE(waits.answered());
}

TEST_F(CachedRowStoreTest, APlanThatWaitsCanBeCancelled) {
  Make(0, 1);
  Asked first = Ask({1});
  Asked gone = Ask({2});
  Asked last = Ask({3});
  gone.plan.reset();
  Enqueue(first);
  RunStream();
  EXPECT_FALSE(gone.answered());
  EXPECT_TRUE(last.answered());
}

TEST_F(CachedRowStoreTest, AnUnreadableRowFailsThePlansThatNameItAndIsForgotten) {
  Make(8, 16, [](const RowRead&, size_t ordinal) { return ordinal == 1 ? ReadFault::kError : ReadFault::kNone; });
  Asked fails = Ask({1, 7, 7});
  ASSERT_TRUE(fails.answered());
  EXPECT_EQ(fails.answer().status.code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(fails.answer().failures.size(), 1u);
  EXPECT_EQ(fails.answer().failures[0].id_index, 1u);
  EXPECT_EQ(fails.answer().failures[0].file, "a.safetensors");
  EXPECT_EQ(fails.answer().failures[0].offset, 7u * kLabelBytes);
  EXPECT_EQ(store_->stats().staging_free, 16u) << "nothing is held then";
  EXPECT_EQ(store_->stats().slots_held + store_->stats().slots_arriving, 0u);
  EXPECT_EQ(Step({1, 7}).misses, 2u);
  EXPECT_TRUE(health_.empty());
}

TEST_F(CachedRowStoreTest, APrestageHoldsUntilEachPartIsEnqueued) {
  Make(2, 16);
  Step({1, 2});
  Asked prestage = Ask({1, 2, 1}, ResolvePurpose::kPrestage);
  ASSERT_TRUE(prestage.plan->Claim());
  Enqueue(prestage, 0, 2);  // ends 2, not 1
  EXPECT_EQ(store_->stats().slots_held, 1u);
  Step({8});
  ASSERT_TRUE(prestage.plan->Claim());
  Enqueue(prestage, 2, 1);
  RunStream();
  EXPECT_EQ(store_->stats().slots_held, 0u);
}

TEST_F(CachedRowStoreTest, FillsOfAPrestageGoOutAloneAndItsStagingReturns) {
  Make(4, 4);
  Asked prestage = Ask({1, 2, 3}, ResolvePurpose::kPrestage);
  EXPECT_EQ(FillOnly(prestage), 3u);
  RunStream();
  EXPECT_EQ(store_->stats().staging_free, 4u);
  EXPECT_EQ(store_->stats().slots_held, 3u);
  ASSERT_TRUE(prestage.plan->Claim());
  EXPECT_EQ(Enqueue(prestage), 0u);
  RunStream();
  EXPECT_EQ(stream_->rows(), 3u);
}

TEST_F(CachedRowStoreTest, TheOldestUnclaimedPrestageYieldsToAPlanWithoutStaging) {
  Make(0, 4);
  Asked oldest = Ask({1, 2}, ResolvePurpose::kPrestage);
  Asked claimed = Ask({3}, ResolvePurpose::kPrestage);
  Asked young = Ask({4}, ResolvePurpose::kPrestage);
  ASSERT_TRUE(claimed.plan->Claim());
  Asked step = Ask({5, 6});
  EXPECT_TRUE(step.answered());
  EXPECT_FALSE(oldest.plan->Held());
  EXPECT_FALSE(oldest.plan->Claim());
  EXPECT_TRUE(young.plan->Held());
  Asked more = Ask({7, 8});
  EXPECT_FALSE(more.answered());
  EXPECT_FALSE(young.plan->Held());
  EXPECT_TRUE(claimed.plan->Held()) << "claimed: a forward counts on it";
  claimed.plan->Unclaim();
  EXPECT_TRUE(more.answer().status.ok());  // by the store's own thread
  EXPECT_FALSE(claimed.plan->Held());
}

}  // namespace
}  // namespace pleiad
