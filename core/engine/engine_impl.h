// The engine: one lock over sequences, queues and ready steps; a device thread that enqueues batches, a completion
// thread that commits and answers, a timer thread for deadlines and idle sequences. Hashing, row resolving, batch
// building and answers happen outside the lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "core/base/random_ids.h"
#include "core/engine/batcher.h"
#include "core/engine/engine.h"
#include "core/engine/op.h"
#include "core/engine/sequence_table.h"

namespace pleiad {

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, EngineModel model, std::unique_ptr<RowStore> rows,
             std::unique_ptr<Device> device);
  ~EngineImpl() override;

  const EngineModel& model() const override { return model_; }
  const DeviceInfo& device_info() const override { return device_->info(); }
  const char* table_mode() const override { return rows_->mode(); }

  void Open(OpenRequest request, std::function<void(OpenResult)> done) override;
  StepId Submit(StepRequest request, std::function<void(StepResult)> done) override;
  void Cancel(StepId step) override;
  void Get(SequenceId sequence, uint64_t epoch, std::function<void(GetSequenceResult)> done) override;
  void Snapshot(SequenceId sequence, uint64_t epoch, std::optional<LayerIndex> layer,
                std::function<void(SnapshotResult)> done) override;
  void Restore(SequenceId sequence, uint64_t epoch, std::string model_id, std::vector<CarryBlob> layers,
               std::function<void(Outcome)> done) override;
  void Release(SequenceId sequence, uint64_t epoch, std::function<void(ReleaseResult)> done) override;
  void Lookup(LookupRequest request, std::function<void(LookupResult)> done) override;
  void Warm(LayerOrdinal layer, std::vector<RowId> rows, std::function<void(Outcome)> done) override;
  std::vector<std::vector<RowId>> CachedRows() const override { return rows_->CachedRows(); }
  void StartDraining() override;
  bool idle() const override;
  void NotifyWhenIdle(std::function<void()> fn) override;
  void NotifyDeviceLost(std::function<void(absl::Status)> fn) override;
  uint64_t Stop() override;
  EngineStats stats() const override;

 private:
  // Holds the lock; its end begins what has come to the head of its queues, and then, without the lock, destroys row
  // plans, resolves rows and calls answers. Answers are called in the order they were made, by one thread at a time.
  class ABSL_SCOPED_LOCKABLE Section {
   public:
    explicit Section(EngineImpl* engine) ABSL_EXCLUSIVE_LOCK_FUNCTION(engine->mutex_);
    ~Section() ABSL_UNLOCK_FUNCTION();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

    std::vector<OpPtr> to_begin;
    std::vector<OpPtr> to_resolve;
    std::vector<std::unique_ptr<RowPlan>> trash;

   private:
    EngineImpl* const engine_;
  };

  // What the device thread hands to the completion thread.
  struct InFlight {
    absl::Status status;  // of enqueueing
    Ticket ticket;
    std::unique_ptr<BatchPlan> plan;  // points into the operations; of a batch only
    std::vector<OpPtr> ops;
  };

  // Arrival: engine_arrival.cc.
  Outcome RefusedNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Admit(const OpPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ArriveStep(Section& section, const std::shared_ptr<StepOp>& op, std::vector<ErrorDetail> errors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ArriveLookup(const std::shared_ptr<LookupOp>& op);
  // Joins the queues of all carries of the sequence, or answers at once when it is unknown or the epoch is old.
  void ArriveSequenceOp(Section& section, const std::shared_ptr<SequenceOp>& op, std::vector<ErrorDetail> errors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Queues: engine_queue.cc.
  void Join(Section& section, const OpPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(Section& section, const OpPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStep(Section& section, const std::shared_ptr<StepOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<ErrorDetail> StartSegments(StepOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves all queues and answers. A failed step leaves its carries waiting for a step with a position.
  void Finish(Section& section, const OpPtr& op, Outcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the operation unless it is past refusal: at once when its rows are being found or it is ready, at its turn
  // when it is queued.
  void Abort(Section& section, const OpPtr& op, Outcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunAnswers();

  // Carries: engine_carry.cc.
  void CommitStep(Section& section, StepOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdatePrestage(Section& section, const SegmentWork& work, absl::Span<const uint32_t> tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InstallPrestages(Section& section, StepOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPrestage(Section& section, Carry& carry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginGet(Section& section, const std::shared_ptr<GetOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginSnapshot(Section& section, const std::shared_ptr<SnapshotOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitRestore(Section& section, RestoreOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSequence(Section& section, Sequence* sequence, uint64_t& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Rows: engine_resolve.cc.
  void Resolve(const OpPtr& op);
  void ResolveStep(const std::shared_ptr<StepOp>& op);
  void ResolvePrestage(const std::shared_ptr<StepOp>& op);
  void ResolveLookup(const std::shared_ptr<LookupOp>& op);
  void ResolveRows(const std::shared_ptr<LookupOp>& op, std::vector<RowId> ids);
  template <typename OpT>
  void PlanAnswered(const std::shared_ptr<OpT>& op, std::optional<ResolveResult> answer, size_t first_id);
  void Resolved(Section& section, const OpPtr& op, const Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Threads: engine_threads.cc.
  void DeviceLoop();
  void CompletionLoop();
  void TimerLoop();
  void RunBatch(std::vector<ReadyStep> steps);
  void RunPrestage(OpPtr op);
  void RunCarryOp(const OpPtr& op);
  void Complete(InFlight work);
  void LoseDevice(Section& section, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(Section& section) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something is due at `due`.
  void WakeTimerBy(absl::Time due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  const EngineOptions options_;
  const EngineModel model_;
  Clock* const clock_;
  const uint32_t heads_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<RowStore> rows_;  // reads into the device's staging

  mutable Mutex mutex_;
  CondVar device_cv_;      // something for the device thread
  CondVar completion_cv_;  // something in flight
  CondVar timer_cv_;       // an earlier deadline
  CondVar stopped_cv_;     // nothing lives, nothing to answer
  SequenceTable sequences_ ABSL_GUARDED_BY(mutex_);
  RandomIds ids_ ABSL_GUARDED_BY(mutex_);
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  uint64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, OpPtr> live_ ABSL_GUARDED_BY(mutex_);  // by arrival
  std::multimap<absl::Time, OpPtr> deadlines_ ABSL_GUARDED_BY(mutex_);
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // by itself
  std::deque<OpPtr> carry_ops_ ABSL_GUARDED_BY(mutex_);  // snapshots and restores for the device thread
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  uint32_t device_work_ ABSL_GUARDED_BY(mutex_) = 0;  // taken by the device thread, not yet completed
  std::deque<std::function<void()>> answers_ ABSL_GUARDED_BY(mutex_);
  bool answering_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool exit_threads_ ABSL_GUARDED_BY(mutex_) = false;
  bool exit_completion_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status device_status_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_idle_ ABSL_GUARDED_BY(mutex_);
  std::function<void(absl::Status)> on_device_lost_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;  // device, completion, timer; joined by Stop
};

}  // namespace pleiad
