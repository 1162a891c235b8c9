#include "core/rows/staging_pool.h"

#include <algorithm>

namespace pleiad {

StagingPool::StagingPool(uint32_t rows, uint32_t reads_begun) : arrivals_(rows), most_begun_(reads_begun) {
  free_.reserve(rows);
  for (uint32_t row = rows; row > 0; --row) free_.push_back(row - 1);
}

uint32_t StagingPool::Take() {
  const uint32_t row = free_.back();
  free_.pop_back();
  return row;
}

void StagingPool::Return(uint32_t row) {
  Arrival& arrival = arrivals_[row];
  arrival.state = ArrivalState::kFree;
  arrival.slot = kNone;
  arrival.plans = 0;
  arrival.last_use = Ticket(0);
  arrival.waiters.clear();
  free_.push_back(row);
}

void StagingPool::ReturnAfter(uint32_t row, Ticket ticket) {
  if (ticket <= completed_) {
    Return(row);
    return;
  }
  arrivals_[row].state = ArrivalState::kLeaving;
  leaving_.push_back({ticket, row});
}

void StagingPool::Completed(Ticket ticket) {
  completed_ = std::max(completed_, ticket);
  while (!leaving_.empty() && leaving_.front().ticket <= completed_) {
    Return(leaving_.front().row);
    leaving_.pop_front();
  }
}

void StagingPool::RemoveWaiter(uint32_t row, const PlanState* plan) {
  auto& waiters = arrivals_[row].waiters;
  waiters.erase(
      std::remove_if(waiters.begin(), waiters.end(), [plan](const Waiter& waiter) { return waiter.plan == plan; }),
      waiters.end());
}

void StagingPool::ReadStarts(uint32_t row, absl::Time now) {
  Arrival& arrival = arrivals_[row];
  arrival.state = ArrivalState::kReading;
  arrival.submitted = now;
  arrival.begun = absl::InfiniteFuture();
  arrival.older = newest_;
  arrival.newer = kNone;
  (newest_ == kNone ? oldest_ : arrivals_[newest_].newer) = row;
  newest_ = row;
  ++reading_;
  BeginReads(now);
}

void StagingPool::BeginReads(absl::Time now) {
  while (begun_ < most_begun_) {
    const uint32_t next = newest_begun_ == kNone ? oldest_ : arrivals_[newest_begun_].newer;
    if (next == kNone) return;
    arrivals_[next].begun = now;
    newest_begun_ = next;
    ++begun_;
  }
}

void StagingPool::ReadEnds(uint32_t row, absl::Time now) {
  Arrival& arrival = arrivals_[row];
  if (arrival.begun != absl::InfiniteFuture()) {
    --begun_;
    if (newest_begun_ == row) newest_begun_ = arrival.older;
  }
  (arrival.older == kNone ? oldest_ : arrivals_[arrival.older].newer) = arrival.newer;
  (arrival.newer == kNone ? newest_ : arrivals_[arrival.newer].older) = arrival.older;
  --reading_;
  BeginReads(now);
}

void StagingPool::Quarantine(uint32_t row) {
  arrivals_[row].state = ArrivalState::kQuarantined;
  ++quarantined_;
}

void StagingPool::EndQuarantine(uint32_t row) {
  --quarantined_;
  Return(row);
}

}  // namespace pleiad
