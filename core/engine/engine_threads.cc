// The engine's threads: device, completion, delivery, timer (engine_ready.cc: clients); start and stop.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"

namespace pleiad {

CarryShape ShapeOf(const EngineModel& model, const EngineOptions& options) {
  const Geometry& geometry = model.config.geometry;
  return {geometry.context_len(), geometry.state_len(), options.rollback_tokens, model.config.eos_token_id};
}

namespace {

// Asks for what the commit of a step touches, while the device is at it.
void PrefetchCarries(const Op& op) {
  if (op.kind != OpKind::kStep) return;
  for (const SegmentWork& work : static_cast<const StepOp&>(op).segments) {
    if (work.carry == nullptr) continue;
    Prefetch(work.sequence);
    Prefetch(work.carry);
  }
}

bool WaitsForClient(const Op& op) { return op.kind == OpKind::kStep && static_cast<const StepOp&>(op).awaits_client; }

}  // namespace

EngineImpl::EngineImpl(const EngineOptions& options, EngineModel model, std::unique_ptr<RowStore> rows,
                       std::unique_ptr<Device> device)
    : options_(options),
      model_(std::move(model)),
      clock_(options.clock != nullptr ? options.clock : Clock::Real()),
      heads_(model_.config.geometry.heads()),
      device_(std::move(device)),
      rows_(std::move(rows)),
      sequences_(options.max_sequences, static_cast<uint32_t>(model_.config.ple_layers.size()),
                 ShapeOf(model_, options)),
      batcher_(options.max_tokens) {
  {
    MutexLock lock(&mutex_);
    stats_.tokens.resize(model_.config.ple_layers.size());
  }
  threads_.emplace_back([this] { DeviceLoop(); });
  threads_.emplace_back([this] { CompletionLoop(); });
  threads_.emplace_back([this] { DeliveryLoop(); });
  threads_.emplace_back([this] { TimerLoop(); });
  threads_.emplace_back([this] { ReadyLoop(); });
}

EngineImpl::~EngineImpl() {
  Stop();
  {
    MutexLock lock(&mutex_);
    while (attending_ > 0) stopped_cv_.Wait(&mutex_);
  }
  Section section(this);
  while (sequences_.in_use() > 0) EndSequence(section, sequences_.by_use().front(), stats_.closed_stopped);
}

void EngineImpl::DeviceLoop() {
  while (true) {
    DeviceWork work;
    {
      MutexLock lock(&mutex_);
      while (!exit_threads_ && !HasDeviceWork()) device_cv_.Wait(&mutex_);
      if (exit_threads_) return;
      work = TakeDeviceWork();
    }
    HandOver(Enqueue(std::move(work)));
  }
}

void EngineImpl::CompletionLoop() {
  while (true) {
    InFlight work;
    {
      MutexLock lock(&mutex_);
      while (completing_ || (!exit_completion_ && in_flight_.empty())) completion_cv_.Wait(&mutex_);
      if (in_flight_.empty()) return;
      completing_ = true;
      work = std::move(in_flight_.front());
      in_flight_.pop_front();
    }
    Complete(std::move(work));
  }
}

void EngineImpl::Complete(InFlight work) {
  for (const OpPtr& op : work.ops) PrefetchCarries(*op);
  // Tickets start at 1; a restore of fresh carries has no work on the device.
  if (work.status.ok() && work.ticket != Ticket(0)) work.status = device_->Wait(work.ticket);
  if (work.status.ok()) rows_->Completed(work.ticket);
  const bool steps = work.ops.front()->kind == OpKind::kStep;
  bool delivers = false;
  if (work.status.ok() && steps) {
    const absl::Time now = clock_->Now();
    for (const OpPtr& op : work.ops) {
      auto* step = static_cast<StepOp*>(op.get());
      step->done_at = now;
      step->batch_tokens = work.plan->num_tokens;
      delivers = delivers || (step->output != nullptr && step->request.output.deliver != nullptr);
    }
  }
  if (delivers) {
    {
      // The device goes on meanwhile.
      MutexLock lock(&mutex_);
      --device_work_;
      if (HasDeviceWork()) device_cv_.NotifyOne();
    }
    Deliver(work.ops);
  }
  Section section(this);
  if (!delivers) --device_work_;
  completing_ = false;
  if (!in_flight_.empty() || exit_completion_) completion_cv_.NotifyOne();
  if (HasDeviceWork()) device_cv_.NotifyOne();
  if (!work.status.ok()) {
    LoseDevice(section, work.status);
    for (const OpPtr& op : work.ops) {
      if (op->state == OpState::kRunning) Finish(section, op, RefusedNow());
    }
    return;
  }
  if (steps) stats_.batch_tokens.Add(work.plan->num_tokens);
  for (const OpPtr& op : work.ops) {
    if (op->kind == OpKind::kStep) {
      EndStep(section, std::static_pointer_cast<StepOp>(op));
      continue;
    }
    if (op->kind == OpKind::kPrestage) {
      InstallPrestages(section, *static_cast<StepOp*>(op.get()));
    } else if (op->kind == OpKind::kRestore) {
      CommitRestore(section, *static_cast<RestoreOp*>(op.get()));
    }
    Finish(section, op, Outcome());
  }
}

void EngineImpl::EndStep(Section& section, const std::shared_ptr<StepOp>& op) {
  StepStats& stats = op->result.stats;
  stats.batch_tokens = op->batch_tokens;
  stats.queue = (op->begun - op->arrived) + (op->enqueued - op->ready);
  stats.resolve = op->ready - op->begun;
  stats.device = op->done_at - op->enqueued;
  stats_.queue.Add(absl::ToDoubleSeconds(stats.queue));
  stats_.device.Add(absl::ToDoubleSeconds(stats.device));
  CommitStep(section, *op);
  // What it used of a prestage is used, even where it fails now.
  for (SegmentWork& work : op->segments) work.prestaged = false;
  Finish(section, op, op->undelivered ? *std::move(op->undelivered) : Outcome());
}

void EngineImpl::Deliver(std::vector<OpPtr>& steps) {
  std::erase_if(steps, [this](const OpPtr& op) {
    auto step = std::static_pointer_cast<StepOp>(op);
    if (step->output == nullptr || !step->request.output.deliver) return false;
    if (step->output_bytes <= kDeliveredHere || step->request.memory != TensorMemory::kHost) {
      step->undelivered = step->request.output.deliver();
      return false;
    }
    MutexLock lock(&mutex_);
    deliveries_.push_back(std::move(step));
    delivery_cv_.NotifyOne();
    return true;
  });
}

void EngineImpl::DeliveryLoop() {
  while (true) {
    std::shared_ptr<StepOp> op;
    {
      MutexLock lock(&mutex_);
      while (!exit_threads_ && deliveries_.empty()) delivery_cv_.Wait(&mutex_);
      if (deliveries_.empty()) return;
      op = std::move(deliveries_.front());
      deliveries_.pop_front();
    }
    op->undelivered = op->request.output.deliver();
    Section section(this);
    EndStep(section, op);
  }
}

void EngineImpl::LoseDevice(Section& section, const absl::Status& status) {
  if (!device_status_.ok()) return;
  device_status_ = status;
  std::vector<OpPtr> ops;
  for (const auto& [arrival, op] : live_) ops.push_back(op);
  std::sort(ops.begin(), ops.end(), [](const OpPtr& a, const OpPtr& b) { return a->arrival < b->arrival; });
  for (const OpPtr& op : ops) Abort(section, op, RefusedNow());
  if (on_device_lost_) answers_.push_back([fn = std::exchange(on_device_lost_, nullptr), status] { fn(status); });
}

void EngineImpl::Expire(Section& section) {
  const absl::Time now = clock_->Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const OpPtr op = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    op->timed = false;
    Outcome outcome;
    outcome.code = absl::StatusCode::kDeadlineExceeded;
    outcome.message = WaitsForClient(*op) ? "the ready event of its memory was not done in time"
                                          : "timeout_ms passed before the step began";
    Abort(section, op, std::move(outcome));
  }
  while (sequences_.in_use() > 0) {
    Sequence* sequence = sequences_.by_use().front();
    if (sequence->last_used + options_.sequence_ttl > now) break;
    if (sequence->queues_empty()) {
      EndSequence(section, sequence, stats_.closed_expired);
    } else {
      sequences_.Touch(sequence, now);
    }
  }
}

absl::Time EngineImpl::NextWake() const {
  // No sequence opened from now on is due earlier, so opening wakes nobody.
  absl::Time next = clock_->Now() + options_.sequence_ttl;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (sequences_.in_use() > 0) {
    next = std::min(next, sequences_.by_use().front()->last_used + options_.sequence_ttl);
  }
  return next;
}

void EngineImpl::WakeTimerBy(absl::Time due) {
  if (due < timer_wakes_) timer_cv_.NotifyOne();
}

void EngineImpl::TimerLoop() {
  while (true) {
    {
      Section section(this);
      Expire(section);
    }
    MutexLock lock(&mutex_);
    if (exit_threads_) return;
    timer_wakes_ = NextWake();
    if (timer_wakes_ > clock_->Now()) clock_->WaitUntil(&timer_cv_, &mutex_, timer_wakes_);
    timer_wakes_ = absl::InfinitePast();
  }
}

uint64_t EngineImpl::Stop() {
  uint64_t not_run = 0;
  {
    Section section(this);
    if (stopping_) return 0;
    stopping_ = true;
    std::vector<OpPtr> ops;
    for (const auto& [arrival, op] : live_) ops.push_back(op);
    std::sort(ops.begin(), ops.end(), [](const OpPtr& a, const OpPtr& b) { return a->arrival < b->arrival; });
    for (const OpPtr& op : ops) {
      if (op->kind == OpKind::kStep && op->state != OpState::kRunning && op->state != OpState::kDone) ++not_run;
      Abort(section, op, RefusedNow());
    }
  }
  {
    MutexLock lock(&mutex_);
    while (!live_.empty() || !answers_.empty() || answering_ || attending_ > 0) stopped_cv_.Wait(&mutex_);
    exit_threads_ = true;
    device_cv_.NotifyAll();
    delivery_cv_.NotifyAll();
    timer_cv_.NotifyAll();
    ready_cv_.NotifyAll();
  }
  threads_[0].join();
  {
    MutexLock lock(&mutex_);
    exit_completion_ = true;
    completion_cv_.NotifyAll();
  }
  for (size_t i = 1; i < threads_.size(); ++i) threads_[i].join();
  Section section(this);
  for (Sequence* sequence : sequences_.by_use()) {
    for (Carry& carry : sequence->carries) DropPrestage(section, carry);
  }
  return not_run;
}

void EngineImpl::StartDraining() {
  Section section(this);
  draining_ = true;
}

bool EngineImpl::idle() const {
  MutexLock lock(&mutex_);
  return live_.empty() && sequences_.in_use() == 0;
}

void EngineImpl::NotifyWhenIdle(std::function<void()> fn) {
  Section section(this);
  on_idle_ = std::move(fn);
}

void EngineImpl::NotifyDeviceLost(std::function<void(absl::Status)> fn) {
  Section section(this);
  if (!device_status_.ok()) {
    answers_.push_back([fn = std::move(fn), status = device_status_] { fn(status); });
  } else {
    on_device_lost_ = std::move(fn);
  }
}

EngineStats EngineImpl::stats() const {
  EngineStats stats;
  {
    MutexLock lock(&mutex_);
    stats = stats_;
    stats.sequences = sequences_.open();
    stats.steps_in_flight = live_.size();
  }
  stats.rows = rows_->stats();
  stats.device_work = device_->stats();
  return stats;
}

}  // namespace pleiad
