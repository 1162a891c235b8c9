// The engine: one lock over sequences, queues and ready steps; a device thread that enqueues batches, a completion
// thread that commits and answers, a delivery thread that brings large outputs to where they are wanted before they are
// committed, a timer thread for deadlines and idle sequences. Hashing, row resolving, batch
// building and answers happen outside the lock.
//
// Waking a thread takes as long as a small batch. So an idle device whose Run only enqueues is given the next
// batch by a thread that has submitted a short step, which then also completes it if it is done already. While the
// device works, waking a thread costs nothing: steps gather for the device thread, and the completion thread waits.
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

CarryShape ShapeOf(const EngineModel& model, const EngineOptions& options);

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, EngineModel model, std::unique_ptr<RowStore> rows,
             std::unique_ptr<Device> device);
  ~EngineImpl() override;

  const EngineOptions& options() const override { return options_; }
  const EngineModel& model() const override { return model_; }
  const DeviceInfo& device_info() const override { return device_->info(); }
  const char* table_mode() const override { return rows_->mode(); }

  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportMemory(const ClientMemoryHandles& handles) override {
    return device_->Import(handles);
  }
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                           std::shared_ptr<void> until_released) override {
    return device_->ImportFile(fd, offset, bytes, std::move(until_released));
  }
  void Open(OpenRequest request, std::function<void(OpenResult)> done) override;
  StepId Submit(StepRequest request, std::function<void(StepResult)> done) override;
  void Attend(const std::function<void()>& fn) override;
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
  absl::Status GiveSequences(const SequenceSink& sink) override;
  absl::StatusOr<uint64_t> TakeSequences(const SequenceSource& source) override;
  EngineStats stats() const override;

 private:
  // Holds the lock; its end begins what has come to the head of its queues, and then, without the lock, destroys row
  // plans, resolves rows and calls answers. Answers are called in the order they were made, by one thread at a time.
  class ABSL_SCOPED_LOCKABLE Section {
   public:
    // What becomes of the steps that are ready once their rows are resolved here.
    enum class Ready : uint8_t { kWakeDeviceThread, kGiveToDevice };

    explicit Section(EngineImpl* engine) ABSL_EXCLUSIVE_LOCK_FUNCTION(engine->mutex_);
    ~Section() ABSL_UNLOCK_FUNCTION();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

    // Whether this thread is resolving for a section with kGiveToDevice.
    static bool Enqueues() { return enqueues_; }

    std::vector<OpPtr> to_begin;
    std::vector<OpPtr> to_resolve;
    std::vector<std::shared_ptr<RowPlan>> trash;
    Ready ready = Ready::kWakeDeviceThread;

   private:
    static thread_local std::vector<OpPtr>* resolving_;  // what this thread is at
    static thread_local bool enqueues_;

    EngineImpl* const engine_;
  };

  // Bytes of a step's tensor up to which the thread that submits it may give it to the device: copying them takes about
  // as long as waking a thread. The copy of a larger one would keep that thread from receiving the next.
  static constexpr uint64_t kCopiedHere = 1 << 20;
  // Tokens of a step up to which its rows are found here though the device could: that takes less than the launch of
  // one kernel more, and short batches stay graphs.
  static constexpr size_t kHashedHere = 64;
  // Tokens of segments that a prestage resolves in one plan where plans hold nothing. The last of them to be used keeps
  // the whole of it.
  static constexpr size_t kPrestagedTogether = 64;
  // Bytes of a step's output up to which the thread that completes its batch also delivers it: others wait for it.
  static constexpr uint64_t kDeliveredHere = 256 << 10;

  // What was given to the device and is to be completed.
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
  // Sets id, first token and sequence of its segments, and asks for what the next acts touch of them.
  void FindSequences(StepOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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

  // A restart: engine_keep.cc. `rows` is room for all rows of a carry.
  absl::Status TakeBack(KeptSequence kept, absl::Span<float> rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Rows: engine_resolve.cc.
  // Whether the device finds the rows of so many tokens of a step; there is nothing to prestage then.
  bool FoundByDevice(size_t tokens) const { return tokens > kHashedHere && device_->info().hashes_rows; }
  void Resolve(const OpPtr& op);
  void ResolveStep(const std::shared_ptr<StepOp>& op);
  void ResolvePrestage(const std::shared_ptr<StepOp>& op);
  void ResolveLookup(const std::shared_ptr<LookupOp>& op);
  void ResolveRows(const std::shared_ptr<LookupOp>& op, std::vector<RowId> ids);
  template <typename OpT>
  void PlanAnswered(const std::shared_ptr<OpT>& op, std::optional<ResolveResult> answer, size_t first_id);
  void Resolved(Section& section, const OpPtr& op, const Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To the batcher.
  void MakeStepReady(const std::shared_ptr<StepOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeReady(const OpPtr& op, ReadyStep ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Memory of clients: engine_ready.cc.
  // Whether all memory of a step is ready.
  static absl::StatusOr<bool> AskReady(const StepOp& op);
  // Until it is, or the step has ended.
  void AwaitReady(const std::shared_ptr<StepOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnsweredReady(Section& section, const std::shared_ptr<StepOp>& op, const absl::StatusOr<bool>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadyLoop();

  // The device: engine_device.cc.
  // What the device is to be given next; a batch or an operation on carries.
  struct DeviceWork {
    std::vector<ReadyStep> batch;
    OpPtr carry_op;
  };
  bool HasDeviceWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There is some.
  DeviceWork TakeDeviceWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives it to the device.
  InFlight Enqueue(DeviceWork work);
  // Enqueues on this thread what is ready if the device is idle; wakes the device thread otherwise. Leaves it to Attend
  // to complete where that runs on this thread.
  void EnqueueHere();
  // Whose completion waits for the end of the attended function on this thread.
  struct Attended {
    EngineImpl* engine;
    std::optional<InFlight> work;
  };
  static thread_local Attended* attended_;
  // To the completion thread.
  void HandOver(InFlight work);
  void HandOverLocked(InFlight work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  InFlight RunBatch(std::vector<ReadyStep> steps);
  InFlight RunPrestage(OpPtr op);
  InFlight RunCarryOp(const OpPtr& op);
  // Threads: engine_threads.cc.
  void DeviceLoop();
  void CompletionLoop();
  void TimerLoop();
  // Waits until it is done, commits and answers; by one thread at a time, in the order of tickets.
  void Complete(InFlight work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Commits a step that the device is done with, and answers.
  void EndStep(Section& section, const std::shared_ptr<StepOp>& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of steps that the device is done with: delivers small outputs, and takes those with large ones out of `steps`, for
  // the delivery thread to deliver and end.
  void Deliver(std::vector<OpPtr>& steps) ABSL_LOCKS_EXCLUDED(mutex_);
  void DeliveryLoop();
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
  CondVar device_cv_;      // something for the device
  CondVar completion_cv_;  // something in flight
  CondVar delivery_cv_;    // an output to deliver
  CondVar timer_cv_;       // an earlier deadline
  CondVar ready_cv_;       // a step waits for memory of its client
  CondVar stopped_cv_;     // nothing lives, nothing to answer, nobody attends
  SequenceTable sequences_ ABSL_GUARDED_BY(mutex_);
  RandomIds ids_ ABSL_GUARDED_BY(mutex_);
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  uint64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, OpPtr> live_ ABSL_GUARDED_BY(mutex_);  // by arrival
  std::multimap<absl::Time, OpPtr> deadlines_ ABSL_GUARDED_BY(mutex_);
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // by itself
  // In kResolving with their rows found, or ended meanwhile; asked by the thread that waits for clients.
  std::vector<std::shared_ptr<StepOp>> awaiting_ ABSL_GUARDED_BY(mutex_);
  bool asks_at_once_ ABSL_GUARDED_BY(mutex_) = false;    // one came since they were asked
  std::deque<OpPtr> carry_ops_ ABSL_GUARDED_BY(mutex_);  // snapshots and restores for the device thread
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<StepOp>> deliveries_ ABSL_GUARDED_BY(mutex_);  // done on the device
  uint32_t device_work_ ABSL_GUARDED_BY(mutex_) = 0;                        // taken for the device, not yet completed
  bool enqueuing_ ABSL_GUARDED_BY(mutex_) = false;                          // a thread calls the device
  bool completing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread completes what was in flight first
  uint32_t attending_ ABSL_GUARDED_BY(mutex_) = 0;   // threads in Attend
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

  std::vector<std::thread> threads_;  // device, completion, delivery, timer, clients; joined by Stop
};

}  // namespace pleiad
