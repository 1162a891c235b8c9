// Queues: joining, coming to the head, leaving.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"

namespace pleiad {
thread_local std::vector<OpPtr>* EngineImpl::Section::resolving_ = nullptr;
thread_local bool EngineImpl::Section::enqueues_ = false;

EngineImpl::Section::Section(EngineImpl* engine) : engine_(engine) { engine_->mutex_.Lock(); }

EngineImpl::Section::~Section() {
  // Begin appends.
  for (size_t i = 0; i < to_begin.size(); ++i) {
    const OpPtr op = std::move(to_begin[i]);
    engine_->Begin(*this, op);
  }
  engine_->CheckIdle();
  engine_->mutex_.Unlock();
  trash.clear();
  // Resolving may open sections of its own; what they leave is done here, so that the stack stays flat.
  if (resolving_ != nullptr) {
    for (OpPtr& op : to_resolve) resolving_->push_back(std::move(op));
    return;
  }
  if (!to_resolve.empty()) {
    resolving_ = &to_resolve;
    enqueues_ = ready == Ready::kGiveToDevice;
    for (size_t i = 0; i < to_resolve.size(); ++i) {
      const OpPtr op = std::move(to_resolve[i]);
      engine_->Resolve(op);
    }
    resolving_ = nullptr;
    if (std::exchange(enqueues_, false)) engine_->EnqueueHere();
  }
  engine_->RunAnswers();
}

void EngineImpl::RunAnswers() {
  MutexLock lock(&mutex_);
  if (answering_) return;
  answering_ = true;
  while (!answers_.empty()) {
    std::function<void()> answer = std::move(answers_.front());
    answers_.pop_front();
    mutex_.Unlock();
    answer();
    answer = nullptr;
    mutex_.Lock();
  }
  answering_ = false;
  if (live_.empty()) stopped_cv_.NotifyAll();
}

void EngineImpl::CheckIdle() {
  if (!draining_ || !on_idle_ || !live_.empty() || sequences_.in_use() != 0) return;
  answers_.push_back(std::exchange(on_idle_, nullptr));
}

void EngineImpl::Join(Section& section, const OpPtr& op) {
  for (Carry* carry : op->carries) {
    carry->queue.push_back(op);
    if (carry->queue.size() > 1) ++op->waits;
  }
  if (op->waits == 0) section.to_begin.push_back(op);
}

void EngineImpl::Begin(Section& section, const OpPtr& op) {
  op->begun = clock_->Now();
  if (op->refused) {
    Finish(section, op, std::move(*op->refused));
    return;
  }
  if (op->kind == OpKind::kStep || op->kind == OpKind::kPrestage) {
    BeginStep(section, std::static_pointer_cast<StepOp>(op));
    return;
  }
  if (op->kind == OpKind::kLookup) {
    op->state = OpState::kResolving;
    section.to_resolve.push_back(op);
    return;
  }
  auto sequence_op = std::static_pointer_cast<SequenceOp>(op);
  Sequence* sequence = sequence_op->sequence;
  if (sequence->state == SequenceState::kDead) {
    Finish(section, op, Refused({UnknownSequence()}));
    return;
  }
  // A release closed the sequence when it came, so no later epoch can overtake it.
  if (op->epoch != 0 && op->epoch < sequence->epoch) {
    Finish(section, op, Refused({EpochBelow(op->epoch, sequence->epoch)}));
    return;
  }
  switch (op->kind) {
    case OpKind::kGet:
      BeginGet(section, std::static_pointer_cast<GetOp>(op));
      return;
    case OpKind::kSnapshot:
      BeginSnapshot(section, std::static_pointer_cast<SnapshotOp>(op));
      return;
    case OpKind::kRestore:
      op->state = OpState::kRunning;
      carry_ops_.push_back(op);
      device_cv_.NotifyOne();
      return;
    case OpKind::kReleaseAfter:
      // A Release that came meanwhile stands behind this one and ends the sequence itself.
      if (sequence->state == SequenceState::kOpen) EndSequence(section, sequence, stats_.closed_released);
      Finish(section, op, Outcome());
      return;
    default:
      EndSequence(section, sequence, stats_.closed_released);
      Finish(section, op, Outcome());
      return;
  }
}

std::vector<ErrorDetail> EngineImpl::StartSegments(StepOp& op) {
  std::vector<ErrorDetail> errors;
  for (uint32_t i = 0; i < op.segments.size(); ++i) {
    const StepSegment& asked = op.request.segments[i];
    SegmentWork& work = op.segments[i];
    if (work.id == SequenceId(0)) {
      work.start = CarryState({model_.config.geometry.context_len(), 0, 0, model_.config.eos_token_id}).Fresh();
      continue;
    }
    if (work.sequence == nullptr || work.sequence->state == SequenceState::kDead) {
      errors.push_back(UnknownSequence(i));
      continue;
    }
    if (op.epoch != 0 && op.epoch < work.sequence->epoch) {
      errors.push_back(EpochBelow(op.epoch, work.sequence->epoch, i));
      continue;
    }
    const CarryState& state = work.carry->state;
    if (asked.fresh) {
      work.start = state.Fresh();
      continue;
    }
    const auto fail = [&](Reason reason, std::string value, std::string limit) {
      ErrorDetail detail = MakeDetail(reason, "position", std::move(value), std::move(limit), i);
      detail.position = state.position();
      detail.low = state.low();
      errors.push_back(std::move(detail));
    };
    if (!asked.position && work.carry->predecessor_failed) {
      fail(Reason::kPredecessorFailed, "absent", "the step before failed; send the position, or fresh");
      continue;
    }
    std::optional<StepStart> start = state.At(asked.position);
    if (!start) {
      fail(Reason::kPositionUnreachable, absl::StrCat(asked.position->value()),
           absl::StrCat("reachable are ", state.low().value(), " to ", state.position().value(),
                        " and the start of the last step, ", state.last_step_start().value()));
      continue;
    }
    if (start->position.value() + asked.num_tokens > kMaxPosition.value()) {
      fail(Reason::kPositionUnreachable, absl::StrCat(start->position.value()), "a position is at most 2^62");
      continue;
    }
    work.start = *std::move(start);
  }
  return errors;
}

void EngineImpl::BeginStep(Section& section, const std::shared_ptr<StepOp>& op) {
  if (op->begun >= op->deadline) {
    Outcome outcome;
    outcome.code = absl::StatusCode::kDeadlineExceeded;
    outcome.message = "timeout_ms passed before the step began";
    Finish(section, op, std::move(outcome));
    return;
  }
  if (std::vector<ErrorDetail> errors = StartSegments(*op); !errors.empty()) {
    Finish(section, op, Refused(std::move(errors)));
    return;
  }
  bool device = false;
  for (size_t i = 0; i < op->segments.size(); ++i) {
    SegmentWork& work = op->segments[i];
    const StepSegment& asked = op->request.segments[i];
    device |= asked.num_tokens > 0 || work.start.kind == StartKind::kUndo;
    if (work.carry == nullptr || !work.carry->prestage || asked.num_tokens == 0 || op->kind == OpKind::kPrestage)
      continue;
    const Prestage& prestage = *work.carry->prestage;
    const auto tokens = absl::MakeConstSpan(op->request.token_ids).subspan(work.first_token, asked.num_tokens);
    if (prestage.position != work.start.position || (prestage.kind == StartKind::kFresh) != asked.fresh ||
        prestage.left() < tokens.size() || prestage.history != work.start.history ||
        !std::equal(tokens.begin(), tokens.end(), prestage.tokens.begin() + prestage.used) || !prestage.plan->Claim()) {
      continue;
    }
    work.prestaged = true;
    work.first_row = prestage.first_row + size_t{prestage.used} * heads_;
  }
  if (!device) {
    if (op->kind == OpKind::kPrestage) {
      InstallPrestages(section, *op);
    } else {
      CommitStep(section, *op);
    }
    Finish(section, op, Outcome());
    return;
  }
  op->state = OpState::kResolving;
  section.to_resolve.push_back(op);
}

void EngineImpl::Finish(Section& section, const OpPtr& op, Outcome outcome) {
  const OpPtr keep = op;
  keep->state = OpState::kDone;
  for (OpPtr& follower : keep->followers) {
    if (!outcome.ok()) follower->refused = outcome;
    if (--follower->waits == 0) section.to_begin.push_back(follower);
  }
  keep->followers.clear();
  if (keep->kind == OpKind::kStep && !outcome.ok()) {
    for (SegmentWork& work : static_cast<StepOp&>(*keep).segments) {
      if (work.prestaged) work.carry->prestage->plan->Unclaim();
    }
  }
  const absl::Time now = clock_->Now();
  for (Carry* carry : keep->carries) {
    if (keep->kind == OpKind::kStep && !outcome.ok()) carry->predecessor_failed = true;
    carry->queue.erase(carry->queue.begin());
    if (!carry->queue.empty() && --carry->queue.front()->waits == 0) section.to_begin.push_back(carry->queue.front());
    Sequence* sequence = carry->sequence;
    if (keep->kind != OpKind::kGet && sequence->state == SequenceState::kOpen) sequences_.Touch(sequence, now);
    sequences_.FreeIfDead(sequence);
  }
  keep->carries.clear();
  if (keep->timed) deadlines_.erase(keep->timer);
  keep->timed = false;
  keep->GivePlans(section.trash);
  live_.erase(keep->arrival);
  answers_.push_back(keep->Answer(std::move(outcome)));
}

void EngineImpl::Abort(Section& section, const OpPtr& op, Outcome outcome) {
  const bool lookup = op->kind == OpKind::kLookup;
  const bool step = op->kind == OpKind::kStep || op->kind == OpKind::kPrestage;
  bool wait = op->state == OpState::kQueued;
  if (op->state == OpState::kResolving) {
    // The thread that makes its plans also fills its answer; it ends the operation when it is through.
    wait = lookup ? !static_cast<LookupOp&>(*op).made : !static_cast<StepOp&>(*op).made;
  }
  if (wait) {
    if (!op->refused) op->refused = std::move(outcome);
    return;
  }
  if (op->state == OpState::kReady) {
    if (lookup) batcher_.Remove(static_cast<LookupOp&>(*op).layer, op->arrival);
    if (step) batcher_.Remove(static_cast<StepOp&>(*op).layer, op->arrival);
  } else if (op->state != OpState::kResolving) {
    return;
  }
  Finish(section, op, std::move(outcome));
}

}  // namespace pleiad
