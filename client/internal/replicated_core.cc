#include "client/internal/replicated_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/error_info.h"

namespace pleiad::client::internal {

ReplicatedCarry* ReplicatedCore::Pending::carry(size_t i) const {
  if (step.mode != StepMode::kForward || !layer.has_value() || i >= records.size() || records[i] == nullptr) {
    return nullptr;
  }
  const auto it = records[i]->carries.find(*layer);
  return it == records[i]->carries.end() ? nullptr : &it->second;
}

ReplicatedCore::ReplicatedCore(ReplicatedOptions options, Connector connector, Clock* clock)
    : options_(std::move(options)),
      connector_(std::move(connector)),
      clock_(clock),
      replicas_(RendezvousOrder(options_.addresses, options_.affinity_key),
                {options_.initial_backoff, options_.max_backoff},
                JitterSeed(options_.jitter_seed, options_.affinity_key)),
      budget_(options_.retry_budget, options_.retries_per_second) {}

size_t ReplicatedCore::replica() {
  MutexLock lock(&mutex_);
  return last_replica_;
}

ReplicatedCounters ReplicatedCore::counters() {
  MutexLock lock(&mutex_);
  return counters_;
}

uint64_t ReplicatedCore::position(const ReplicatedRecord& record, uint32_t layer_index) {
  MutexLock lock(&mutex_);
  const auto it = record.carries.find(layer_index);
  return it == record.carries.end() ? 0 : it->second.log.end();
}

ReplicatedCore::Verdict ReplicatedCore::Judge(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return Verdict::kLost;
  const Reason reason = ErrorReason(status);
  if (reason == Reason::kSequenceUnknown && absl::IsNotFound(status)) return Verdict::kForgotten;
  return Verdict::kFinal;
}

bool ReplicatedCore::EndsStream(const absl::Status& status) {
  if (!ErrorDetails(status).empty()) return false;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

void ReplicatedCore::Submit(Step step, std::vector<RecordPtr> records, StepCallback done) {
  PendingList one(1);
  Pending& pending = one.front();
  pending.layer = step.layer_index;
  if (!pending.layer.has_value() && model_.layers.size() == 1) pending.layer = model_.layers[0].layer_index;
  pending.step = std::move(step);
  pending.records = std::move(records);
  pending.records.resize(pending.step.segments.size());
  pending.done = std::move(done);
  // Copied now: the output may take the highway's place.
  uint64_t first = 0;
  for (size_t i = 0; i < pending.records.size(); ++i) {
    const uint32_t count = pending.step.segments[i].num_tokens;
    pending.tokens.emplace_back();
    if (on() && pending.carry(i) != nullptr) pending.tokens[i] = CaptureTokens(shape_, pending.step, first, count);
    first += count;
  }

  MutexLock lock(&mutex_);
  for (size_t i = 0; i < pending.records.size(); ++i) {
    const StepSegment& segment = pending.step.segments[i];
    ReplicatedCarry* carry = pending.carry(i);
    pending.rewinds.push_back(false);
    if (carry == nullptr) continue;
    const uint64_t start = segment.position.value_or(segment.fresh ? 0 : carry->next);
    if (start < carry->next) {
      pending.rewinds[i] = true;
      carry->lowest_start = std::min(carry->lowest_start, start);
      ++carry->rewinds_out;
      carry->log.Expect(start);
    }
    carry->next = start + segment.num_tokens;
  }
  pending_.splice(pending_.end(), one);
  if (stopping_) {
    FailWaiting(absl::CancelledError("the client was closed"));
  } else if (site_ == nullptr && !holding_) {
    Lose(nullptr);
  } else if (!holding_) {
    Dispatch(std::prev(pending_.end()));
  }
}

void ReplicatedCore::Drain() {
  MutexLock lock(&mutex_);
  while (!pending_.empty() || out_ > 0) changed_.Wait(&mutex_);
}

void ReplicatedCore::Dispatch(PendingList::iterator pending) {
  Site* const site = site_.get();
  pending->out = true;
  if (++out_ == 1) heard_ = Now();
  Step step = pending->step;
  std::vector<std::shared_ptr<Sequence>> handles;
  bool released = false;
  for (size_t i = 0; i < pending->records.size(); ++i) {
    if (pending->records[i] == nullptr) continue;
    handles.push_back(pending->records[i]->handle);
    step.segments[i].sequence = handles.back().get();
    released |= handles.back() == nullptr;
  }
  ++site->entered;
  mutex_.Unlock();
  if (released) {
    OnAnswer(pending, site, absl::FailedPreconditionError("the step names a sequence that was released"));
  } else {
    site->stream->Submit(std::move(step), [this, pending, site](absl::StatusOr<StepResult> result) {
      OnAnswer(pending, site, std::move(result));
    });
  }
  handles.clear();
  mutex_.Lock();
  if (--site->entered == 0 && holding_) changed_.NotifyAll();
}

void ReplicatedCore::OnAnswer(PendingList::iterator pending, Site* site, absl::StatusOr<StepResult> result) {
  StepCallback done;
  {
    MutexLock lock(&mutex_);
    heard_ = Now();
    if (!result.ok() && on() && !stopping_) {
      absl::Status status = result.status();
      if (Keeps(&*pending, site, &status)) {
        pending->out = false;
        --out_;
        changed_.NotifyAll();
        return;
      }
      result = std::move(status);
    }
    Settle(&*pending, result);
    const bool moves_already = draining_ && !leaves_unreadable_;
    if (result.ok() && result->draining && on() && !moves_already && heard_ >= drain_at_ && site == site_.get()) {
      draining_ = true;
      leaves_unreadable_ = false;
      work_.NotifyAll();
    }
    if (!result.ok() && on() && site == site_.get() && ErrorReason(result.status()) == Reason::kTableUnreadable) {
      unreadable_ = true;
      work_.NotifyAll();
    }
    done = std::move(pending->done);
    pending_.erase(pending);
  }
  done(std::move(result));
  MutexLock lock(&mutex_);
  --out_;
  if (holding_ || pending_.empty()) changed_.NotifyAll();
}

bool ReplicatedCore::Keeps(Pending* pending, const Site* site, absl::Status* status) {
  Verdict verdict = Judge(*status);
  // A step with a time of its own may end for that.
  const bool timed_out = absl::IsDeadlineExceeded(*status) && pending->step.timeout != absl::InfiniteDuration();
  if (verdict == Verdict::kFinal && !timed_out && EndsStream(*status)) verdict = Verdict::kLost;
  if (verdict == Verdict::kLost) Lose(site);
  if (verdict == Verdict::kForgotten) {
    bool comes_back = false;
    for (const ErrorDetail& detail : ErrorDetails(*status)) {
      if (detail.reason != Reason::kSequenceUnknown) continue;
      for (size_t i = 0; i < pending->records.size(); ++i) {
        if (pending->records[i] == nullptr || detail.segment.value_or(i) != i) continue;
        comes_back |= Forget(pending->records[i].get());
      }
    }
    if (!comes_back) return false;
    // Opened there once more, and unknown again: behind a balancer the stream may end at another replica than the
    // calls.
    if (++pending->forgotten > 1) Lose(site);
  }
  if (verdict != Verdict::kFinal) {
    if (++pending->losses <= options_.max_losses_of_a_step) return true;
    *status = absl::UnavailableError(
        absl::StrCat("lost with ", pending->losses, " replicas, the last time: ", status->ToString()));
    return false;
  }
  // What failed behind a step that will be sent again says nothing yet.
  for (const Pending& before : pending_) {
    if (&before == pending) return false;
    if (before.out) continue;
    for (const RecordPtr& record : before.records) {
      if (record == nullptr) continue;
      if (std::count(pending->records.begin(), pending->records.end(), record) > 0) return true;
    }
  }
  return false;
}

void ReplicatedCore::Settle(Pending* pending, const absl::StatusOr<StepResult>& result) {
  for (size_t i = 0; i < pending->records.size(); ++i) {
    ReplicatedCarry* carry = pending->carry(i);
    if (carry == nullptr) continue;
    if (pending->rewinds[i]) --carry->rewinds_out;
    carry->needs_start = !result.ok();
    if (!result.ok() || result->segments.size() <= i) continue;
    const StepSegment& segment = pending->step.segments[i];
    const SegmentResult& reached = result->segments[i];
    carry->log.Apply({.start = reached.position - segment.num_tokens,
                      .fresh = segment.fresh,
                      .num_tokens = segment.num_tokens,
                      .low = reached.low},
                     std::move(pending->tokens[i]));
    WantSnapshot(pending->records[i], *pending->layer);
  }
}

void ReplicatedCore::WantSnapshot(const RecordPtr& record, uint32_t layer) {
  ReplicatedCarry& carry = record->carries.at(layer);
  if (!on() || options_.snapshot_every == 0 || carry.snapshot_wanted || carry.rewinds_out > 0) return;
  const uint64_t end = carry.log.end();
  if (end < carry.snapshot_at) carry.snapshot_at = carry.log.base();
  if (carry.log.known() && end - std::max(carry.snapshot_at, carry.log.base()) < options_.snapshot_every) return;
  carry.snapshot_wanted = true;
  carry.snapshot_at = end;
  snapshots_.emplace_back(record, layer);
  tend_.NotifyAll();
}

void ReplicatedCore::Lose(const Site* site) {
  if (site != site_.get() || lost_ || stopping_ || !on()) return;
  lost_ = holding_ = true;
  lost_at_ = Now();
  work_.NotifyAll();
}

bool ReplicatedCore::Forget(ReplicatedRecord* record) {
  if (record->released || stopping_) return false;
  record->gone = true;
  forgotten_ = holding_ = true;
  work_.NotifyAll();
  return true;
}

}  // namespace pleiad::client::internal
