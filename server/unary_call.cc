#include "server/unary_call.h"

#include <utility>

#include "server/convert.h"

namespace pleiad {

std::shared_ptr<UnaryCall> UnaryCall::Create(ServiceState* state, grpc::CallbackServerContext* context, Rpc rpc) {
  std::shared_ptr<UnaryCall> call(new UnaryCall(state, context, rpc));
  call->self_ = call;
  state->BeginCall();
  return call;
}

bool UnaryCall::Admit(uint64_t bytes) {
  if (!state_->admission.TryAdmit(bytes, client_in_flight(), &refused_by_)) {
    if (refused_by_ == Admission::Limit::kTotal) {
      refusal_ = TooManyInFlight(state_->limits());
    } else {
      AdmissionLimits used = state_->admission.used(*client_in_flight());
      used.bytes += bytes;
      refusal_ = client_->TooManyInFlight(refused_by_, used);
    }
    return false;
  }
  admitted_ = bytes;
  state_->stalls.Add(self_);
  return true;
}

void UnaryCall::SetStep(StepId step) {
  {
    MutexLock lock(&mutex_);
    step_ = step;
    if (!cancelled_) return;
  }
  state_->engine()->Cancel(step);
}

void UnaryCall::Complete(const Outcome& outcome) {
  if (!outcome.ok()) {
    context_->AddTrailingMetadata(kStatusMetadataKey, ToStatusMetadata(outcome));
    state_->failures.Failed(kRpcNames[static_cast<size_t>(rpc_)], outcome, *context_, sequence_);
  }
  if (outcome.ok() && write_response_) write_response_();
  state_->counters.CountRpc(rpc_, outcome.code);
  if (admitted_) state_->admission.ReleaseRequest(client_in_flight());
  {
    MutexLock lock(&mutex_);
    answered_ = state_->clock()->Now();
  }
  Finish(ToGrpcStatus(outcome));
}

void UnaryCall::OnCancel() {
  std::optional<StepId> step;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    step = step_;
  }
  if (step) state_->engine()->Cancel(*step);
}

void UnaryCall::CancelIfStalled(absl::Time now) {
  {
    MutexLock lock(&mutex_);
    if (!answered_ || now - *answered_ < UnaryReadPatience(admitted_.value_or(0))) return;
  }
  MutexLock lock(&context_mutex_);
  if (!done_) context_->TryCancel();
}

void UnaryCall::OnDone() {
  {
    MutexLock lock(&context_mutex_);
    done_ = true;
  }
  if (admitted_) {
    state_->stalls.Remove(this);
    state_->admission.ReleaseBytes(*admitted_, client_in_flight());
  }
  const std::shared_ptr<UnaryCall> self = std::move(self_);
  state_->EndCall();
}

}  // namespace pleiad
