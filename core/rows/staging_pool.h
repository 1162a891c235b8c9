// The rows on their way: one arrival per staging row. The caller serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "core/base/strong_id.h"

namespace pleiad {

struct PlanState;

struct Waiter {
  PlanState* plan = nullptr;
  uint32_t entry = 0;  // in the plan's list of arrivals
};

inline constexpr uint32_t kNone = 0xFFFFFFFFu;

// kReading -> kRead -> kLeaving -> kFree; a read that fails goes to kFree at once, one that never ends to kQuarantined.
enum class ArrivalState : uint8_t {
  kFree,
  kReading,      // the reader may write the staging row
  kRead,         // whole; waits for the batch that fills its slot, or for the plans that gather it from staging
  kLeaving,      // nobody can find the row here any more; the device may still read it
  kQuarantined,  // timed out: forgotten, but the reader may still write the staging row
};

struct Arrival {
  uint64_t key = 0;         // RowKey
  uint64_t stamp = 0;       // number of the plan that last counted itself here, and
  uint32_t entry = 0;       // its place in that plan's list
  uint32_t generation = 0;  // moves on when the row here can no longer be found
  uint32_t slot = kNone;    // kNone: bypasses the arena
  uint32_t plans = 0;       // that name it and are not enqueued
  ArrivalState state = ArrivalState::kFree;
  Ticket last_use;  // batch that gathered it from staging last
  absl::Time submitted;
  absl::Time begun;                       // since when few enough reads are before it; InfiniteFuture until then
  uint32_t older = kNone, newer = kNone;  // among the reads in flight
  absl::InlinedVector<Waiter, 1> waiters;
};

// A reader serves reads about in their order. So many it may have begun; one behind them waits for its turn, and is not
// late for that.
inline constexpr uint32_t kReadsBegun = 512;

class StagingPool {
 public:
  explicit StagingPool(uint32_t rows, uint32_t reads_begun = kReadsBegun);

  Arrival& operator[](uint32_t row) { return arrivals_[row]; }
  // The plan waits for the read no more.
  void RemoveWaiter(uint32_t row, const PlanState* plan);
  uint32_t rows() const { return static_cast<uint32_t>(arrivals_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t quarantined() const { return quarantined_; }
  uint32_t reading() const { return reading_; }
  // Rows that will be free again by themselves or when a plan ends.
  uint32_t busy() const { return rows() - free() - quarantined_; }

  // Needs free() > 0.
  uint32_t Take();
  // Nobody uses the row: it is free now.
  void Return(uint32_t row);
  // The row is free once `ticket` is done.
  void ReturnAfter(uint32_t row, Ticket ticket);
  void Completed(Ticket ticket);
  Ticket completed() const { return completed_; }

  void ReadStarts(uint32_t row, absl::Time now);
  void ReadEnds(uint32_t row, absl::Time now);
  // The oldest read in flight, or kNone.
  uint32_t oldest_read() const { return oldest_; }
  // Of a row whose read has timed out.
  void Quarantine(uint32_t row);
  // Its read has ended after all.
  void EndQuarantine(uint32_t row);

 private:
  void BeginReads(absl::Time now);

  struct Leaving {
    Ticket ticket;
    uint32_t row;
  };

  std::vector<Arrival> arrivals_;
  std::vector<uint32_t> free_;
  // A row may wait behind a later ticket than its own, never before an earlier one.
  std::deque<Leaving> leaving_;
  Ticket completed_;
  uint32_t quarantined_ = 0;
  uint32_t reading_ = 0;
  uint32_t oldest_ = kNone, newest_ = kNone;
  const uint32_t most_begun_;
  uint32_t begun_ = 0;  // reads, the oldest ones
  uint32_t newest_begun_ = kNone;
};

}  // namespace pleiad
