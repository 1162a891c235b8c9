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
  if (!state_->admission.TryAdmit(bytes)) return false;
  admitted_ = bytes;
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
  state_->counters.CountRpc(rpc_, outcome.code);
  if (admitted_) state_->admission.ReleaseRequest();
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

void UnaryCall::OnDone() {
  if (admitted_) state_->admission.ReleaseBytes(*admitted_);
  const std::shared_ptr<UnaryCall> self = std::move(self_);
  state_->EndCall();
}

}  // namespace pleiad
