#include "core/rows/staging_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace pleiad {
namespace {

struct PlanTag {};
// Plans are compared by address alone.
const PlanState* PlanAt(const PlanTag* tag) { return reinterpret_cast<const PlanState*>(tag); }

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(StagingPool, HandsOutEachRowOnce) {
  StagingPool pool(5);
  EXPECT_EQ(pool.rows(), 5u);
  std::set<uint32_t> taken;
  while (pool.free() > 0) taken.insert(pool.Take());
  EXPECT_EQ(taken, (std::set<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.busy(), 5u);
  pool.Return(3);
  EXPECT_EQ(pool.busy(), 4u);
  EXPECT_EQ(pool.Take(), 3u);
}

TEST(StagingPool, AReturnedRowForgetsItsLastUse) {
  StagingPool pool(1);
  const PlanTag plan;
  const uint32_t row = pool.Take();
  pool[row].state = ArrivalState::kRead;
  pool[row].slot = 9;
  pool[row].plans = 2;
  pool[row].last_use = Ticket(4);
  pool[row].waiters.push_back({const_cast<PlanState*>(PlanAt(&plan)), 1});
  pool.Return(row);
  const Arrival& arrival = pool[pool.Take()];
  EXPECT_EQ(arrival.state, ArrivalState::kFree);
  EXPECT_EQ(arrival.slot, kNone);
  EXPECT_EQ(arrival.plans, 0u);
  EXPECT_EQ(arrival.last_use, Ticket(0));
  EXPECT_TRUE(arrival.waiters.empty());
}

TEST(StagingPool, RowsAreFreeOnceTheirTicketIsDone) {
  StagingPool pool(4);
  for (int i = 0; i < 4; ++i) (void)pool.Take();
  pool.ReturnAfter(0, Ticket(1));
  pool.ReturnAfter(1, Ticket(3));
  pool.ReturnAfter(2, Ticket(3));
  EXPECT_EQ(pool[0].state, ArrivalState::kLeaving);
  EXPECT_EQ(pool.free(), 0u);
  pool.Completed(Ticket(1));
  EXPECT_EQ(pool.free(), 1u);
  pool.Completed(Ticket(2));
  EXPECT_EQ(pool.free(), 1u);
  pool.Completed(Ticket(3));
  EXPECT_EQ(pool.free(), 3u);
  EXPECT_EQ(pool.busy(), 1u);
  // A ticket that is done already.
  pool.ReturnAfter(3, Ticket(2));
  EXPECT_EQ(pool[3].state, ArrivalState::kFree);
  EXPECT_EQ(pool.free(), 4u);
}

TEST(StagingPool, ARowMayWaitBehindALaterTicketAndNeverLeavesBeforeItsOwn) {
  StagingPool pool(2);
  for (int i = 0; i < 2; ++i) (void)pool.Take();
  pool.ReturnAfter(0, Ticket(5));
  pool.ReturnAfter(1, Ticket(2));
  pool.Completed(Ticket(2));
  EXPECT_EQ(pool.free(), 0u);
  pool.Completed(Ticket(4));
  EXPECT_EQ(pool.free(), 0u);
  // Late news of an early ticket takes nothing back.
  pool.Completed(Ticket(5));
  pool.Completed(Ticket(1));
  EXPECT_EQ(pool.completed(), Ticket(5));
  EXPECT_EQ(pool.free(), 2u);
}

TEST(StagingPool, KnowsTheOldestReadWhateverTheOrderTheyEndIn) {
  StagingPool pool(4);
  EXPECT_EQ(pool.oldest_read(), kNone);
  for (int i = 0; i < 4; ++i) (void)pool.Take();
  for (const uint32_t row : {2u, 0u, 3u, 1u}) pool.ReadStarts(row, kStart + absl::Seconds(row));
  EXPECT_EQ(pool.reading(), 4u);
  EXPECT_EQ(pool.oldest_read(), 2u);
  EXPECT_EQ(pool[3].submitted, kStart + absl::Seconds(3));
  EXPECT_EQ(pool[3].state, ArrivalState::kReading);
  pool.ReadEnds(0, kStart);  // in the middle
  EXPECT_EQ(pool.oldest_read(), 2u);
  pool.ReadEnds(2, kStart);  // the oldest
  EXPECT_EQ(pool.oldest_read(), 3u);
  pool.ReadEnds(1, kStart);  // the newest
  EXPECT_EQ(pool.oldest_read(), 3u);
  pool.ReadStarts(0, kStart);  // behind the others, whatever its time
  EXPECT_EQ(pool.oldest_read(), 3u);
  pool.ReadEnds(3, kStart);
  EXPECT_EQ(pool.oldest_read(), 0u);
  pool.ReadEnds(0, kStart);
  EXPECT_EQ(pool.oldest_read(), kNone);
  EXPECT_EQ(pool.reading(), 0u);
}

TEST(StagingPool, AReadBeginsWhenFewEnoughAreBeforeIt) {
  StagingPool pool(5, 2);
  for (int i = 0; i < 5; ++i) (void)pool.Take();
  const auto at = [](int seconds) { return kStart + absl::Seconds(seconds); };
  for (uint32_t row = 0; row < 5; ++row) pool.ReadStarts(row, at(static_cast<int>(row)));
  const auto begun = [&pool](uint32_t row) { return pool[row].begun; };
  EXPECT_EQ(begun(0), at(0));
  EXPECT_EQ(begun(1), at(1));
  EXPECT_EQ(begun(2), absl::InfiniteFuture());
  pool.ReadEnds(3, at(10));  // one that waits gives nobody its turn
  EXPECT_EQ(begun(2), absl::InfiniteFuture());
  pool.ReadEnds(1, at(11));  // the newest that has begun
  EXPECT_EQ(begun(2), at(11));
  EXPECT_EQ(begun(4), absl::InfiniteFuture());
  pool.ReadEnds(0, at(12));
  EXPECT_EQ(begun(4), at(12));
  pool.ReadEnds(2, at(13));
  pool.ReadEnds(4, at(14));
  pool.ReadStarts(3, at(15));
  EXPECT_EQ(begun(3), at(15));
  EXPECT_EQ(pool.reading(), 1u);
}

TEST(StagingPool, AQuarantinedRowIsNeitherFreeNorBusyUntilItsReadEnds) {
  StagingPool pool(2);
  const uint32_t row = pool.Take();
  pool.ReadStarts(row, kStart);
  pool.ReadEnds(row, kStart);
  pool.Quarantine(row);
  EXPECT_EQ(pool[row].state, ArrivalState::kQuarantined);
  EXPECT_EQ(pool.quarantined(), 1u);
  EXPECT_EQ(pool.busy(), 0u);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_NE(pool.Take(), row);
  pool.EndQuarantine(row);
  EXPECT_EQ(pool.quarantined(), 0u);
  EXPECT_EQ(pool.Take(), row);
}

TEST(StagingPool, APlanStopsWaitingForARowAloneAndAltogether) {
  StagingPool pool(1);
  const PlanTag a, b;
  const uint32_t row = pool.Take();
  for (const PlanTag* tag : {&a, &b, &a}) pool[row].waiters.push_back({const_cast<PlanState*>(PlanAt(tag)), 0});
  pool.RemoveWaiter(row, PlanAt(&a));
  ASSERT_EQ(pool[row].waiters.size(), 1u);
  EXPECT_EQ(pool[row].waiters[0].plan, PlanAt(&b));
}

}  // namespace
}  // namespace pleiad
