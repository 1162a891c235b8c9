// What the device is given, by its thread or by one that submits: batches, prestages, operations on carries.
#include <algorithm>
#include <utility>

#include "core/engine/engine_impl.h"
#include "core/engine/planner.h"

namespace pleiad {

thread_local EngineImpl::Attended* EngineImpl::attended_ = nullptr;

void EngineImpl::Attend(const std::function<void()>& fn) {
  {
    MutexLock lock(&mutex_);
    ++attending_;
  }
  Attended attended{this, std::nullopt};
  Attended* const outer = std::exchange(attended_, &attended);
  fn();
  attended_ = outer;
  if (attended.work) Complete(*std::move(attended.work));
  MutexLock lock(&mutex_);
  if (--attending_ == 0) stopped_cv_.NotifyAll();
}

bool EngineImpl::HasDeviceWork() const {
  return !enqueuing_ && device_work_ < std::max(1u, device_->info().pipeline_depth) &&
         (!carry_ops_.empty() || !batcher_.empty());
}

EngineImpl::DeviceWork EngineImpl::TakeDeviceWork() {
  DeviceWork work;
  enqueuing_ = true;
  ++device_work_;
  const absl::Time now = clock_->Now();
  if (!carry_ops_.empty()) {
    work.carry_op = std::move(carry_ops_.front());
    carry_ops_.pop_front();
    work.carry_op->enqueued = now;
  } else {
    work.batch = batcher_.Next();
    for (ReadyStep& step : work.batch) {
      step.op->state = OpState::kRunning;
      step.op->enqueued = now;
    }
  }
  return work;
}

EngineImpl::InFlight EngineImpl::Enqueue(DeviceWork work) {
  return work.carry_op != nullptr ? RunCarryOp(work.carry_op) : RunBatch(std::move(work.batch));
}

void EngineImpl::EnqueueHere() {
  DeviceWork taken;
  {
    MutexLock lock(&mutex_);
    if (!HasDeviceWork()) return;  // who enqueues or completes wakes the device thread
    if (device_work_ > 0) {
      device_cv_.NotifyOne();
      return;
    }
    taken = TakeDeviceWork();
  }
  InFlight work = Enqueue(std::move(taken));
  const bool done = work.status.ok() && work.ticket != Ticket(0) && device_->IsDone(work.ticket);
  const bool attended = attended_ != nullptr && attended_->engine == this && !attended_->work;
  {
    MutexLock lock(&mutex_);
    if ((!done && !attended) || completing_ || !in_flight_.empty()) {
      HandOverLocked(std::move(work));
      return;
    }
    enqueuing_ = false;
    completing_ = true;
    if (HasDeviceWork()) device_cv_.NotifyOne();
  }
  if (done) {
    Complete(std::move(work));
  } else {
    attended_->work = std::move(work);
  }
}

void EngineImpl::HandOver(InFlight work) {
  MutexLock lock(&mutex_);
  HandOverLocked(std::move(work));
}

void EngineImpl::HandOverLocked(InFlight work) {
  enqueuing_ = false;
  if (HasDeviceWork()) device_cv_.NotifyOne();
  in_flight_.push_back(std::move(work));
  if (!completing_) completion_cv_.NotifyOne();
}

EngineImpl::InFlight EngineImpl::RunBatch(std::vector<ReadyStep> steps) {
  InFlight work;
  work.plan = std::make_unique<BatchPlan>();
  BatchPlan& plan = *work.plan;
  BatchRows rows;
  if (steps.front().op->kind == OpKind::kPrestage) return RunPrestage(std::move(steps.front().op));
  if (steps.front().op->kind == OpKind::kLookup) {
    auto* lookup = static_cast<LookupOp*>(steps.front().op.get());
    const auto gather = lookup->plan->gather();
    plan.layer = lookup->layer;
    rows.ranges.push_back({lookup->plan.get(), 0, gather.size()});
    if (lookup->warm.empty()) {
      plan.num_tokens = steps.front().num_tokens;
      plan.gather.assign(gather.begin(), gather.end());
      // A string of this size is allocated, so it is aligned for Bf16.
      plan.embeddings = reinterpret_cast<Bf16*>(lookup->result.embeddings.data());
    }
  } else {
    std::vector<StepOp*> ops;
    for (const ReadyStep& step : steps) ops.push_back(static_cast<StepOp*>(step.op.get()));
    PlanBatch(ops, model_.config.geometry, options_.rollback_tokens, plan, rows);
  }
  for (const RowRange& range : rows.ranges) rows_->AppendFills(*range.plan, range.first, range.count, plan.fills);
  for (ReadyStep& step : steps) work.ops.push_back(std::move(step.op));
  absl::StatusOr<Ticket> ticket = device_->Run(plan);
  work.status = ticket.status();
  if (ticket.ok()) {
    work.ticket = *ticket;
    for (const RowRange& range : rows.ranges) rows_->Enqueued(*range.plan, range.first, range.count, *ticket);
  }
  return work;
}

// Only the fills: its rows are in their slots before a forward comes, and its staging returns.
EngineImpl::InFlight EngineImpl::RunPrestage(OpPtr op) {
  auto* prestage = static_cast<StepOp*>(op.get());
  InFlight work;
  work.plan = std::make_unique<BatchPlan>();
  work.plan->layer = prestage->layer;
  for (const std::shared_ptr<RowPlan>& plan : prestage->plans) {
    rows_->AppendFills(*plan, 0, plan->gather().size(), work.plan->fills);
  }
  if (!work.plan->fills.empty()) {
    absl::StatusOr<Ticket> ticket = device_->Run(*work.plan);
    work.status = ticket.status();
    if (ticket.ok()) {
      work.ticket = *ticket;
      for (const std::shared_ptr<RowPlan>& plan : prestage->plans) rows_->Enqueued(*plan, 0, 0, *ticket);
    }
  }
  work.ops.push_back(std::move(op));
  return work;
}

EngineImpl::InFlight EngineImpl::RunCarryOp(const OpPtr& op) {
  const Geometry& geometry = model_.config.geometry;
  InFlight work;
  if (op->kind == OpKind::kSnapshot) {
    auto* snapshot = static_cast<SnapshotOp*>(op.get());
    for (Carry& carry : snapshot->sequence->carries) {
      if (snapshot->layer && *snapshot->layer != carry.layer) continue;
      CarryBlob blob;
      blob.layer = model_.config.ple_layers[carry.layer.value()];
      blob.position = carry.state.position();
      const StepStart start = *carry.state.At(std::nullopt);
      blob.aux = MakeAuxBlob(start.history, geometry);
      snapshot->result.layers.push_back(std::move(blob));
      if (geometry.state_len() == 0) continue;
      CarryRead read;
      read.carry = carry.slot;
      read.ring = start.ring;
      // The rows start at a multiple of 4 of an allocated string.
      read.rows = reinterpret_cast<float*>(snapshot->result.layers.back().aux.data() + AuxConvOffset(geometry));
      absl::StatusOr<Ticket> ticket = device_->ReadCarry(read);
      work.status.Update(ticket.status());
      if (ticket.ok()) work.ticket = *ticket;
    }
  } else {
    auto* restore = static_cast<RestoreOp*>(op.get());
    for (const RestoreOp::Layer& layer : restore->layers) {
      if (layer.aux.fresh || geometry.state_len() == 0) continue;
      CarryWrite write;
      write.carry = restore->sequence->carries[layer.layer.value()].slot;
      write.rows = layer.aux.conv_rows.data();
      absl::StatusOr<Ticket> ticket = device_->WriteCarry(write);
      work.status.Update(ticket.status());
      if (ticket.ok()) work.ticket = *ticket;
    }
  }
  work.ops.push_back(op);
  return work;
}

}  // namespace pleiad
