// The store behind CreateCachedRowStore: one lock over maps, slots, arrivals and plans. Reads are submitted and answers
// given outside of it.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "core/base/mutex.h"
#include "core/rows/cached_row_store.h"
#include "core/rows/live_plans.h"
#include "core/rows/slot_table.h"
#include "core/rows/staging_pool.h"

namespace pleiad {

// An arriving row that a plan names; void once the arrival has moved on to another generation.
struct NamedArrival {
  uint32_t arrival = 0;
  uint32_t generation = 0;
  uint32_t first_id = 0, last_id = 0;
};

struct HeldSlot {
  uint32_t slot = 0;
  uint32_t last_id = 0;
};

enum class PlanPhase : uint8_t { kQueued, kReading, kAnswering, kAnswered };

struct PlanState : std::enable_shared_from_this<PlanState> {
  LayerOrdinal layer;
  ResolvePurpose purpose = ResolvePurpose::kStep;
  std::vector<RowId> ids;
  RowStore::DoneFn done;
  std::vector<GatherIndex> gather;

  PlanPhase phase = PlanPhase::kQueued;
  std::thread::id answering;  // in kAnswering
  uint64_t number = 0;        // of the last attempt
  std::vector<NamedArrival> named;
  std::vector<HeldSlot> held;  // of a prestage; the last id first
  uint32_t reads_pending = 0;
  uint32_t staging_wanted = 0;  // in kQueued
  size_t enqueued = 0;          // ids of which the holds have ended
  ResolveResult result;
  bool claimed = false, yielded = false, destroyed = false;
  bool over = false;                  // a step's, enqueued whole: answered, and nothing is left to end
  bool idle = false, queued = false;  // `place` is in idle_ or queue_
  std::list<PlanState*>::iterator place;
};

using PlanPtr = std::shared_ptr<PlanState>;

// What an act under the lock leaves to be done without it.
struct Actions {
  std::vector<RowRead> reads;
  std::vector<PlanPtr> answers;
  bool health = false;  // may have changed
};

class CachedRowStoreImpl : public RowStore {
 public:
  CachedRowStoreImpl(absl::Span<const TableLayout* const> tables, std::vector<std::string> files,
                     std::unique_ptr<RowReader> reader, CachedRowStoreOptions options, std::vector<RowMap> maps,
                     SlotTable slots, HostMemory landing);
  ~CachedRowStoreImpl() override;

  const char* mode() const override { return "cached"; }
  std::unique_ptr<RowPlan> Resolve(LayerOrdinal layer, std::vector<RowId> ids, ResolvePurpose purpose,
                                   DoneFn done) override;
  void AppendFills(RowPlan& plan, size_t first, size_t count, std::vector<Fill>& fills) override;
  void Enqueued(RowPlan& plan, size_t first, size_t count, Ticket ticket) override;
  void Completed(Ticket ticket) override;
  RowStoreStats stats() const override;
  std::vector<std::vector<RowId>> CachedRows() const override;

  bool Claim(PlanState& plan);
  void Unclaim(PlanState& plan);
  bool Held(const PlanState& plan) const;
  void Destroy(PlanState& plan);

 private:
  // Resolving: cached_row_store_resolve.cc. Names what the plan needs, or nothing when staging is short.
  enum class Found : uint8_t { kShort, kReading, kAll };
  Found Attempt(PlanState& plan, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fills plan.gather, plan.named and the scratch of the attempt.
  void Lookup(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NameArrival(PlanState& plan, uint32_t id, uint32_t arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UndoLookup(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HoldSlots(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HoldSlot(PlanState& plan, uint32_t slot, uint32_t last_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PlaceMisses(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t TakeSlot(uint32_t* steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Evictable(uint32_t slot, uint64_t oldest_live) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void YieldFor(uint32_t wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives staging to the plans that wait for it, in order.
  void ServeQueue(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Plans: cached_row_store_plans.cc.
  void Answer(PlanState& plan, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends all holds that are left.
  void EndHolds(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BecomeIdle(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveIdle(PlanState& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Current(const NamedArrival& named) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return staging_[named.arrival].generation == named.generation;
  }
  // The plan names the arrival no more; the last one to say so forgets it.
  void EndNamed(const NamedArrival& named) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Actions actions) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads: cached_row_store_reads.cc.
  void OnResults(absl::Span<const RowReadResult> results);
  void AskFor(uint32_t arrival, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailRead(uint32_t arrival, const absl::Status& status, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Out of the map; its slot is free again. The staging row stays the caller's.
  void Forget(uint32_t arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Failed(const RowLocation& location, const absl::Status& status, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TimerLoop();
  void Probe();
  void TellHealth();
  RowLocation Locate(uint64_t key) const { return tables_[LayerOfKey(key)].Locate(RowId(RowOfKey(key))); }

  const std::vector<TableLayout> tables_;
  const std::vector<std::string> files_;
  const CachedRowStoreOptions options_;
  Clock* const clock_;
  const RowReader::ResultFn on_results_;
  // Disk rows where they differ from staging rows: [staging rows, disk_row_bytes].
  const HostMemory landing_;

  mutable Mutex mutex_;
  CondVar timer_cv_;
  CondVar answered_cv_;
  std::vector<RowMap> maps_ ABSL_GUARDED_BY(mutex_);  // [layers]
  SlotTable slots_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<EvictionPolicy> policy_ ABSL_GUARDED_BY(mutex_);
  StagingPool staging_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> filling_ ABSL_GUARDED_BY(mutex_);  // fills given out, ticket not known yet
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  LivePlans live_ ABSL_GUARDED_BY(mutex_);                       // of steps, not enqueued
  std::list<PlanState*> queue_ ABSL_GUARDED_BY(mutex_);          // waiting for staging
  std::list<PlanState*> idle_ ABSL_GUARDED_BY(mutex_);           // prestages that may yield, the oldest first
  std::vector<RowPlace> places_ ABSL_GUARDED_BY(mutex_);         // scratch of Lookup
  std::vector<uint32_t> fresh_ ABSL_GUARDED_BY(mutex_);          // scratch of an attempt: its misses
  absl::flat_hash_set<uint64_t> short_ ABSL_GUARDED_BY(mutex_);  // and the missing rows that found no staging
  std::vector<uint32_t> arriving_ids_ ABSL_GUARDED_BY(mutex_);
  RowStoreStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_result_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // of the reader
  uint32_t failures_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  RowLocation failed_at_ ABSL_GUARDED_BY(mutex_);
  absl::Time probe_due_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint32_t probes_out_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex health_mutex_;  // one caller of on_table_health at a time
  absl::Status told_ ABSL_GUARDED_BY(health_mutex_);

  std::unique_ptr<RowReader> reader_;
  std::thread timer_;
};

}  // namespace pleiad
