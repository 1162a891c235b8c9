// Arrival: rules of the request, epochs, places in the queues.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"
#include "core/engine/request_rules.h"

namespace pleiad {
Outcome EngineImpl::RefusedNow() const {
  if (device_status_.ok() && !stopping_) return Outcome();
  Outcome outcome;
  outcome.code = absl::StatusCode::kUnavailable;
  outcome.message = stopping_ ? "the server is stopping; try another replica"
                              : absl::StrCat("the device is lost: ", device_status_.message());
  return outcome;
}

void EngineImpl::Admit(const OpPtr& op) {
  op->arrival = ++arrivals_;
  op->arrived = clock_->Now();
  live_.emplace(op->arrival, op);
  if (op->deadline == absl::InfiniteFuture()) return;
  op->timer = deadlines_.emplace(op->deadline, op);
  op->timed = true;
  WakeTimerBy(op->deadline);
}

StepId EngineImpl::Submit(StepRequest request, std::function<void(StepResult)> done) {
  auto op = std::make_shared<StepOp>();
  op->kind = request.mode == StepMode::kPrestage ? OpKind::kPrestage : OpKind::kStep;
  op->epoch = request.epoch;
  op->request = std::move(request);
  op->done = std::move(done);
  std::vector<ErrorDetail> errors = CheckStep(op->request, model_.config, options_.max_tokens);
  if (op->request.timeout != absl::InfiniteDuration()) op->deadline = clock_->Now() + op->request.timeout;
  if (const auto layer = FindLayer(model_.config, op->request.layer)) op->layer = *layer;

  const bool copied = op->request.memory == TensorMemory::kHost;
  const bool here =
      device_->info().run_cost == RunCost::kEnqueueing && (!copied || op->request.input.bytes <= kCopiedHere);
  Section section(this);
  if (here) section.ready = Section::Ready::kGiveToDevice;
  Admit(op);
  ArriveStep(section, op, std::move(errors));
  return StepId(op->arrival);
}

void EngineImpl::FindSequences(StepOp& op) {
  const bool has_layer = FindLayer(model_.config, op.request.layer).has_value();
  for (const StepSegment& segment : op.request.segments) sequences_.PrefetchFind(segment.sequence);
  uint32_t first_token = 0;
  for (size_t i = 0; i < op.segments.size(); ++i) {
    SegmentWork& work = op.segments[i];
    work.id = op.request.segments[i].sequence;
    work.first_token = first_token;
    first_token += op.request.segments[i].num_tokens;
    if (work.id != SequenceId(0)) work.sequence = sequences_.Find(work.id);
    if (work.sequence != nullptr) Prefetch(work.sequence);
  }
  for (const SegmentWork& work : op.segments) {
    if (work.sequence != nullptr && has_layer) Prefetch(&work.sequence->carries[op.layer.value()]);
  }
}

void EngineImpl::ArriveStep(Section& section, const std::shared_ptr<StepOp>& op, std::vector<ErrorDetail> errors) {
  if (Outcome now = RefusedNow(); !now.ok()) {
    Finish(section, op, std::move(now));
    return;
  }
  const bool has_layer = FindLayer(model_.config, op->request.layer).has_value();
  const bool well_formed = errors.empty() && !op->request.refused;
  op->segments.resize(op->request.segments.size());
  std::vector<ErrorDetail> unknown, old;
  FindSequences(*op);
  op->carries.reserve(op->segments.size());
  for (uint32_t i = 0; i < op->segments.size(); ++i) {
    SegmentWork& work = op->segments[i];
    if (work.id == SequenceId(0)) continue;
    Sequence* const sequence = std::exchange(work.sequence, nullptr);
    if (sequence == nullptr) {
      unknown.push_back(UnknownSequence(i));
      continue;
    }
    sequences_.Touch(sequence, op->arrived);
    if (well_formed && op->epoch != 0) {
      if (op->epoch < sequence->epoch) {
        old.push_back(EpochBelow(op->epoch, sequence->epoch, i));
      } else {
        sequence->epoch = op->epoch;
      }
    }
    if (!has_layer) continue;
    work.sequence = sequence;
    Carry* carry = &sequence->carries[op->layer.value()];
    work.carry = carry;
    // A request without errors names each once.
    const bool named = !errors.empty() && std::find(op->carries.begin(), op->carries.end(), carry) != op->carries.end();
    if (!named) op->carries.push_back(carry);
  }
  if (op->request.refused) {
    op->refused = std::move(op->request.refused);
  } else if (!errors.empty() || !old.empty()) {
    // Errors of the request as a whole come first, then by segment.
    for (std::vector<ErrorDetail>* more : {&unknown, &old}) {
      for (ErrorDetail& detail : *more) errors.push_back(std::move(detail));
    }
    std::stable_sort(errors.begin(), errors.end(), [](const ErrorDetail& a, const ErrorDetail& b) {
      return a.segment.has_value() != b.segment.has_value() ? !a.segment.has_value() : a.segment < b.segment;
    });
    op->refused = Refused(std::move(errors));
  }
  Join(section, op);
  if (op->refused) return;
  absl::flat_hash_set<SequenceId> named;
  for (SequenceId id : op->request.release_after) {
    Sequence* sequence = sequences_.Find(id);
    if (sequence == nullptr || !named.insert(id).second) continue;
    auto release = std::make_shared<ReleaseOp>();
    release->kind = OpKind::kReleaseAfter;
    release->epoch = op->epoch;
    release->sequence = sequence;
    release->id = id;
    release->waits = 1;
    for (Carry& carry : sequence->carries) release->carries.push_back(&carry);
    op->followers.push_back(release);
    Admit(release);
    Join(section, release);
  }
}

void EngineImpl::ArriveSequenceOp(Section& section, const std::shared_ptr<SequenceOp>& op,
                                  std::vector<ErrorDetail> errors) {
  Admit(op);
  if (Outcome now = RefusedNow(); !now.ok()) {
    Finish(section, op, std::move(now));
    return;
  }
  if (op->id == SequenceId(0)) {
    errors.insert(errors.begin(), MakeDetail(Reason::kInvalidField, "sequence_id", "0",
                                             "names the throw-away carry, for Forward alone"));
    Finish(section, op, Refused(std::move(errors)));
    return;
  }
  Sequence* sequence = sequences_.Find(op->id);
  if (sequence == nullptr) {
    Finish(section, op, Refused({UnknownSequence()}));
    return;
  }
  op->sequence = sequence;
  if (op->kind != OpKind::kGet) sequences_.Touch(sequence, op->arrived);
  if (errors.empty() && op->epoch != 0) {
    if (op->epoch < sequence->epoch) {
      errors.push_back(EpochBelow(op->epoch, sequence->epoch));
    } else {
      sequence->epoch = op->epoch;
    }
  }
  if (!errors.empty()) op->refused = Refused(std::move(errors));
  for (Carry& carry : sequence->carries) op->carries.push_back(&carry);
  if (op->kind == OpKind::kRelease && !op->refused) sequences_.Close(sequence);
  Join(section, op);
}

void EngineImpl::Get(SequenceId sequence, uint64_t epoch, std::function<void(GetSequenceResult)> done) {
  auto op = std::make_shared<GetOp>();
  op->kind = OpKind::kGet;
  op->id = sequence;
  op->epoch = epoch;
  op->done = std::move(done);
  Section section(this);
  ArriveSequenceOp(section, op, {});
}

void EngineImpl::Snapshot(SequenceId sequence, uint64_t epoch, std::optional<LayerIndex> layer,
                          std::function<void(SnapshotResult)> done) {
  auto op = std::make_shared<SnapshotOp>();
  op->kind = OpKind::kSnapshot;
  op->id = sequence;
  op->epoch = epoch;
  op->done = std::move(done);
  std::vector<ErrorDetail> errors;
  if (layer) {
    LayerChoice choice = ChooseLayer(model_.config, layer);
    op->layer = choice.layer;
    if (!choice.layer) errors.push_back(std::move(choice.error));
  }
  Section section(this);
  ArriveSequenceOp(section, op, std::move(errors));
}

void EngineImpl::Restore(SequenceId sequence, uint64_t epoch, std::string model_id, std::vector<CarryBlob> layers,
                         std::function<void(Outcome)> done) {
  auto op = std::make_shared<RestoreOp>();
  op->kind = OpKind::kRestore;
  op->id = sequence;
  op->epoch = epoch;
  op->done = std::move(done);
  std::vector<ErrorDetail> errors = CheckBlobs(layers, model_id, model_.model_id, model_.config);
  if (errors.empty()) op->TakeBlobs(layers, model_.config);
  Section section(this);
  ArriveSequenceOp(section, op, std::move(errors));
}

void EngineImpl::Release(SequenceId sequence, uint64_t epoch, std::function<void(ReleaseResult)> done) {
  ReleaseResult result;
  {
    Section section(this);
    Sequence* found = sequences_.Find(sequence);
    const bool old = found != nullptr && epoch != 0 && epoch < found->epoch;
    const bool simple = sequence != SequenceId(0) && !old && RefusedNow().ok() && answers_.empty() && !answering_ &&
                        (found == nullptr || found->queues_empty());
    if (!simple) {
      auto op = std::make_shared<ReleaseOp>();
      op->kind = OpKind::kRelease;
      op->id = sequence;
      op->epoch = epoch;
      // An unknown id is no error of a release.
      op->done = [fn = std::move(done)](ReleaseResult at_its_turn) {
        if (at_its_turn.outcome.code == absl::StatusCode::kNotFound) at_its_turn.outcome = Outcome();
        fn(std::move(at_its_turn));
      };
      ArriveSequenceOp(section, op, {});
      return;
    }
    if (found != nullptr) {
      EndSequence(section, found, stats_.closed_released);
      result.released = true;
    }
  }
  done(std::move(result));
}

void EngineImpl::ArriveLookup(const std::shared_ptr<LookupOp>& op) {
  Section section(this);
  Admit(op);
  if (Outcome now = RefusedNow(); !now.ok()) {
    Finish(section, op, std::move(now));
    return;
  }
  Join(section, op);
}

void EngineImpl::Lookup(LookupRequest request, std::function<void(LookupResult)> done) {
  auto op = std::make_shared<LookupOp>();
  op->kind = OpKind::kLookup;
  op->request = std::move(request);
  op->done = std::move(done);
  std::vector<ErrorDetail> errors = CheckLookup(op->request, model_.config, options_.max_tokens);
  if (const auto layer = FindLayer(model_.config, op->request.layer)) op->layer = *layer;
  if (!errors.empty()) op->refused = Refused(std::move(errors));
  ArriveLookup(op);
}

void EngineImpl::Warm(LayerOrdinal layer, std::vector<RowId> rows, std::function<void(Outcome)> done) {
  auto op = std::make_shared<LookupOp>();
  op->kind = OpKind::kLookup;
  op->layer = layer;
  op->warm = std::move(rows);
  op->done = [fn = std::move(done)](LookupResult result) { fn(std::move(result.outcome)); };
  ArriveLookup(op);
}

void EngineImpl::Cancel(StepId step) {
  Section section(this);
  const auto it = live_.find(step.value());
  if (it == live_.end()) return;
  const OpPtr op = it->second;
  Outcome outcome;
  outcome.code = absl::StatusCode::kCancelled;
  outcome.message = "cancelled before the step began";
  Abort(section, op, std::move(outcome));
}

}  // namespace pleiad
