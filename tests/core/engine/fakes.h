// A device and a row store that tests hold and let go.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/rows/row_store.h"

namespace pleiad {

// One batch that a fake device was given.
struct RanBatch {
  uint32_t num_tokens = 0;
  std::vector<SegmentPlan> segments;
  std::vector<GatherIndex> gather;
  std::thread::id thread;
  std::vector<TensorPart> parts;  // their pointers are not to be followed
  std::vector<ClientMemory*> client_memory;
};

// Completes tickets at once, or when told. Its carries hold only what WriteCarry gave; a step adds 1 to its highway.
class FakeDevice : public Device {
 public:
  FakeDevice(Geometry geometry, RunCost run_cost, uint32_t pipeline_depth) : geometry_(geometry) {
    info_.name = "fake";
    info_.run_cost = run_cost;
    info_.pipeline_depth = pipeline_depth;
  }

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override { return {}; }
  StagingView staging() const override { return {}; }
  absl::Status WriteArena(Slot, absl::Span<const std::byte>) override { return absl::OkStatus(); }

  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override {
    MutexLock lock(&mutex_);
    ran_.push_back(
        {plan.num_tokens, plan.segments, plan.gather, std::this_thread::get_id(), plan.parts, plan.client_memory});
    changed_.NotifyAll();
    for (const TensorPart& part : plan.parts) {
      const size_t values = size_t{part.num_tokens} * geometry_.channels();
      std::vector<float> rows(values, 0.0f);
      if (part.input != nullptr && part.input_dtype == DType::kF32) std::memcpy(rows.data(), part.input, values * 4);
      for (float& value : rows) value += 1.0f;
      if (part.output_dtype == DType::kF32) std::memcpy(part.output, rows.data(), values * 4);
    }
    return Ticket(++last_);
  }
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override {
    MutexLock lock(&mutex_);
    const std::vector<float>& rows = carries_[read.carry.value()];
    const size_t size = std::min(rows.size(), size_t{geometry_.state_len()} * geometry_.channels());
    for (size_t i = 0; i < size; ++i) read.rows[i] = rows[i];
    return Ticket(++last_);
  }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override {
    MutexLock lock(&mutex_);
    carries_[write.carry.value()].assign(write.rows, write.rows + size_t{geometry_.state_len()} * geometry_.channels());
    return Ticket(++last_);
  }
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override {
    MutexLock lock(&mutex_);
    std::vector<float>& kept = carries_[carry.value()];
    kept.resize(rows.size());
    std::copy(kept.begin(), kept.end(), rows.begin());
    return failure_;
  }
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override {
    MutexLock lock(&mutex_);
    carries_[carry.value()].assign(rows.begin(), rows.end());
    return failure_;
  }
  absl::Status Wait(Ticket ticket) override {
    MutexLock lock(&mutex_);
    while (held_ && ticket.value() > let_go_ && failure_.ok()) changed_.Wait(&mutex_);
    return failure_;
  }

  bool IsDone(Ticket ticket) const override {
    MutexLock lock(&mutex_);
    return !held_ || ticket.value() <= let_go_;
  }

  // From now on tickets wait for LetGo.
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
    let_go_ = last_;
  }
  // Tickets given so far complete.
  void LetGo() {
    MutexLock lock(&mutex_);
    let_go_ = last_;
    changed_.NotifyAll();
  }
  void Open() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  void Fail(absl::Status status) {
    MutexLock lock(&mutex_);
    failure_ = std::move(status);
    changed_.NotifyAll();
  }
  // Blocks until `count` batches have been enqueued.
  std::vector<RanBatch> WaitForBatches(size_t count) {
    MutexLock lock(&mutex_);
    while (ran_.size() < count) changed_.Wait(&mutex_);
    return ran_;
  }

 private:
  const Geometry geometry_;
  DeviceInfo info_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t let_go_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<RanBatch> ran_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::vector<float>> carries_ ABSL_GUARDED_BY(mutex_);
};

// slot = row; answers at once, or when told. Counts what is held.
class FakeRowStore : public RowStore {
 public:
  const char* mode() const override { return "fake"; }
  bool holds_nothing() const override {
    MutexLock lock(&mutex_);
    return holds_nothing_;
  }

  std::unique_ptr<RowPlan> Resolve(LayerOrdinal, std::vector<RowId> ids, ResolvePurpose purpose, DoneFn done) override {
    auto plan = std::make_unique<Plan>(this, std::move(ids), purpose);
    ResolveResult answer;
    answer.counts.hits = plan->gather().size();
    bool now = false;
    {
      MutexLock lock(&mutex_);
      ++held_plans_;
      if (waiting_) {
        waiters_.emplace(plan.get(), std::make_pair(std::move(done), answer));
      } else {
        now = true;
      }
      changed_.NotifyAll();
    }
    if (now) done(std::move(answer));
    return plan;
  }
  void AppendFills(RowPlan&, size_t, size_t, std::vector<Fill>&) override {}
  void Enqueued(RowPlan&, size_t, size_t count, Ticket) override {
    MutexLock lock(&mutex_);
    enqueued_ids_ += count;
  }
  void Completed(Ticket) override {}
  RowStoreStats stats() const override { return {}; }

  // From now on plans wait for Answer.
  void Hold() {
    MutexLock lock(&mutex_);
    waiting_ = true;
  }
  // Answers all waiting plans.
  void Answer(absl::Status status, std::vector<RowFailure> failures = {}) {
    std::vector<std::pair<DoneFn, ResolveResult>> answers;
    {
      MutexLock lock(&mutex_);
      waiting_ = false;
      for (auto& [plan, waiter] : waiters_) answers.push_back(std::move(waiter));
      waiters_.clear();
    }
    for (auto& [done, answer] : answers) {
      answer.status = status;
      answer.failures = failures;
      done(std::move(answer));
    }
  }
  void WaitForWaiters(size_t count) {
    MutexLock lock(&mutex_);
    while (waiters_.size() < count) changed_.Wait(&mutex_);
  }
  void Yield() {
    MutexLock lock(&mutex_);
    yielded_ = true;
  }
  // From now on it says so.
  void HoldNothing() {
    MutexLock lock(&mutex_);
    holds_nothing_ = true;
  }
  size_t held_plans() const {
    MutexLock lock(&mutex_);
    return held_plans_;
  }
  size_t enqueued_ids() const {
    MutexLock lock(&mutex_);
    return enqueued_ids_;
  }

 private:
  class Plan : public RowPlan {
   public:
    Plan(FakeRowStore* store, std::vector<RowId> ids, ResolvePurpose purpose) : store_(store), purpose_(purpose) {
      for (RowId id : ids) gather_.push_back(GatherIndex::OfSlot(Slot(static_cast<uint32_t>(id.value()))));
    }
    ~Plan() override {
      MutexLock lock(&store_->mutex_);
      --store_->held_plans_;
      store_->waiters_.erase(this);
    }
    absl::Span<const GatherIndex> gather() const override { return gather_; }
    bool Claim() override { return Held(); }
    void Unclaim() override {}
    bool Held() const override {
      MutexLock lock(&store_->mutex_);
      return purpose_ == ResolvePurpose::kStep || !store_->yielded_;
    }

   private:
    FakeRowStore* const store_;
    const ResolvePurpose purpose_;
    std::vector<GatherIndex> gather_;
  };

  mutable Mutex mutex_;
  CondVar changed_;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool yielded_ ABSL_GUARDED_BY(mutex_) = false;
  bool holds_nothing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t held_plans_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t enqueued_ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Plan*, std::pair<DoneFn, ResolveResult>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
