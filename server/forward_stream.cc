#include "server/forward_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/convert.h"

namespace pleiad {

ForwardStream* ForwardStream::Start(ServiceState* state, grpc::CallbackServerContext* context) {
  std::shared_ptr<ForwardStream> stream(new ForwardStream(state, context));
  stream->self_ = stream;
  state->BeginCall();
  state->AddStream(stream);
  state->stalls.Add(stream);
  stream->ReadNext();
  return stream.get();
}

void ForwardStream::ReadNext() {
  MutexLock lock(&mutex_);
  if (half_closed_ || cancelled_ || ending_) return;
  reading_ = std::make_shared_for_overwrite<Step>();
  StartRead(&reading_->message);
}

ForwardStream::StepPtr ForwardStream::TakeRead() {
  MutexLock lock(&mutex_);
  return std::move(reading_);
}

void ForwardStream::OnReadDone(bool ok) {
  if (ok && HandToSpinner()) return;
  if (ok) state_->counters.CountReceived(false);
  Receive(ok);
}

bool ForwardStream::HandToSpinner() {
  if (!state_->spinner().started()) return false;
  {
    MutexLock lock(&mutex_);
    ++handed_;
  }
  std::function<void()> work = [this, self = self_] {
    state_->counters.CountReceived(true);
    state_->engine()->Attend([this] {
      Receive(true);
      {
        MutexLock lock(&mutex_);
        --handed_;
      }
      FinishIfOver();
    });
  };
  if (state_->spinner().TryRun(work)) return true;
  MutexLock lock(&mutex_);
  --handed_;
  return false;
}

void ForwardStream::Receive(bool ok) {
  StepPtr step = TakeRead();
  const bool good = ok && step->exchange.Receive(&step->message, state_->limits());
  {
    MutexLock lock(&mutex_);
    half_closed_ = half_closed_ || !good;
    malformed_ = malformed_ || (ok && !good);
    if (good && !cancelled_ && !ending_) {
      waiting_ = step;
    } else {
      dropped_ = dropped_ || good;
      step = nullptr;
    }
  }
  if (step == nullptr) return FinishIfOver();
  step->arrival = state_->clock()->Now();
  step->bytes = step->exchange.bytes(state_->limits(), regions_);
  // While the request waits the stream does not end.
  if (state_->admission.AdmitOrWait(&admission_, step->bytes, [this] { Admitted(); })) return Admitted();
  if (IsOver()) Abandon();
}

ForwardStream::StepPtr ForwardStream::TakeWaiting() {
  MutexLock lock(&mutex_);
  StepPtr step = std::move(waiting_);
  if (step != nullptr) running_.insert(step);
  return step;
}

void ForwardStream::Admitted() {
  const std::shared_ptr<ForwardStream> self = self_;
  const StepPtr step = TakeWaiting();
  step->admitted = true;
  Run(step);
  ReadNext();
}

void ForwardStream::Abandon() {
  if (state_->admission.CancelWait(&admission_)) Drop(TakeWaiting());
}

void ForwardStream::Drop(const StepPtr& step) {
  {
    MutexLock lock(&mutex_);
    running_.erase(step);
    dropped_ = true;
  }
  Release(step);
  FinishIfOver();
}

bool ForwardStream::IsOver() {
  MutexLock lock(&mutex_);
  return cancelled_ || ending_;
}

void ForwardStream::Release(const StepPtr& step, uint64_t taken) {
  if (step->admitted) state_->admission.Release(&admission_, step->bytes, taken);
}

void ForwardStream::Run(const StepPtr& step) {
  if (IsOver()) return Drop(step);
  StepRequest request = step->exchange.MakeStep(state_->limits(), regions_, &state_->outputs);
  request.timeout = std::max(absl::ZeroDuration(), request.timeout - (state_->clock()->Now() - step->arrival));
  // While the step runs the stream does not end.
  const StepId id = state_->engine()->Submit(
      std::move(request), [this, raw = step.get()](StepResult result) { Answer(raw, std::move(result)); });
  {
    MutexLock lock(&mutex_);
    step->id = id;
    if (!cancelled_ || !running_.contains(step)) return;
  }
  state_->engine()->Cancel(id);
}

void ForwardStream::Answer(Step* running, StepResult result) {
  const std::shared_ptr<ForwardStream> self = self_;
  const StepPtr step = Find(running);
  const size_t mode = step->exchange.request().mode() == v1::MODE_PRESTAGE ? 1 : 0;
  if (!result.outcome.ok()) {
    state_->failures.Failed("ForwardStream step", result.outcome, *context_,
                            FailedSequence(result.outcome, step->exchange.request()));
  }
  step->message = step->exchange.Answer(result, state_->draining());
  state_->counters.CountItem(mode, result.outcome.code);
  bool dropped;
  StepPtr next;
  {
    MutexLock lock(&mutex_);
    running_.erase(step);
    dropped = cancelled_;
    if (!dropped) {
      if (answered_.empty()) progress_.Begin(state_->clock()->Now());
      answered_.push_back(step);
      next = NextToWrite();
    }
  }
  Write(next);
  step->exchange.Forget();
  if (dropped) Release(step);
  FinishIfOver();
}

ForwardStream::StepPtr ForwardStream::Find(Step* running) {
  MutexLock lock(&mutex_);
  return *running_.find(running);
}

ForwardStream::StepPtr ForwardStream::NextToWrite() {
  if (writing_ || answered_.empty()) return nullptr;
  writing_ = true;
  write_bytes_ = answered_.front()->message.Length();
  progress_.Sending(write_bytes_);
  return answered_.front();
}

void ForwardStream::Write(const StepPtr& next) {
  if (next != nullptr) StartWrite(&next->message);
}

std::vector<ForwardStream::StepPtr> ForwardStream::TakeUnwritten() {
  std::vector<StepPtr> steps;
  while (answered_.size() > (writing_ ? 1 : 0)) {
    steps.push_back(std::move(answered_.back()));
    answered_.pop_back();
  }
  return steps;
}

void ForwardStream::OnWriteDone(bool ok) {
  StepPtr written, next;
  std::vector<StepPtr> dropped;
  uint64_t taken = 0;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) {
      taken = write_bytes_;
      written = std::move(answered_.front());
      progress_.Taken(state_->clock()->Now());
      answered_.pop_front();
      next = NextToWrite();
    } else {
      cancelled_ = true;
      dropped = TakeUnwritten();
    }
  }
  Write(next);
  if (written != nullptr) Release(written, taken);
  for (const StepPtr& step : dropped) Release(step);
  FinishIfOver();
}

void ForwardStream::OnCancel() {
  std::vector<StepId> steps;
  std::vector<StepPtr> dropped;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const StepPtr& step : running_) {
      if (step->id) steps.push_back(*step->id);
    }
    dropped = TakeUnwritten();
  }
  Abandon();
  for (const StepPtr& step : dropped) Release(step);
  std::sort(steps.begin(), steps.end());
  for (const StepId step : steps) state_->engine()->Cancel(step);
  FinishIfOver();
}

void ForwardStream::CancelIfStalled(absl::Time now) {
  {
    MutexLock lock(&mutex_);
    if (!writing_ || cancelled_ || !progress_.TooSlow(now)) return;
    cancelling_ = true;
  }
  context_->TryCancel();
  {
    MutexLock lock(&mutex_);
    cancelling_ = false;
  }
  FinishIfOver();
}

void ForwardStream::End() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  Abandon();
  FinishIfOver();
}

void ForwardStream::FinishIfOver() {
  Outcome outcome;
  {
    MutexLock lock(&mutex_);
    const bool no_more = half_closed_ || cancelled_ || ending_;
    if (!no_more || finished_ || cancelling_ || writing_ || handed_ > 0 || waiting_ != nullptr || !running_.empty() ||
        !answered_.empty())
      return;
    finished_ = true;
    if (malformed_) outcome = MalformedRequest();
    if (ending_ && (!half_closed_ || dropped_)) outcome = Stopping();
  }
  if (!outcome.ok()) context_->AddTrailingMetadata(kStatusMetadataKey, ToStatusMetadata(outcome));
  state_->counters.CountRpc(Rpc::kForwardStream, context_->IsCancelled() ? absl::StatusCode::kCancelled : outcome.code);
  Finish(ToGrpcStatus(outcome));
}

void ForwardStream::OnDone() {
  state_->RemoveStream(this);
  state_->stalls.Remove(this);
  const std::shared_ptr<ForwardStream> self = std::move(self_);
  state_->EndCall();
}

}  // namespace pleiad
