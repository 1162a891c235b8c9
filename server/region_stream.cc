#include "server/region_stream.h"

#include <utility>

#include "server/convert.h"

namespace pleiad {

RegionStream* RegionStream::Start(ServiceState* state, grpc::CallbackServerContext* context) {
  std::shared_ptr<RegionStream> stream(new RegionStream(state, context));
  stream->self_ = stream;
  state->BeginCall();
  state->AddStream(stream);
  stream->StartRead(&stream->request_);
  return stream.get();
}

void RegionStream::OnReadDone(bool ok) {
  if (!ok) return Close(Outcome());
  const RegionTable::Attached attached = state_->regions()->Attach(request_, this, state_->engine());
  *response_.mutable_status() = ToProto(attached.outcome);
  response_.set_region_id(attached.id);
  v1::AttachRegionsRequest().Swap(&request_);  // a hostile one is large
  MutexLock lock(&mutex_);
  if (!finished_) StartWrite(&response_);
}

void RegionStream::OnWriteDone(bool ok) {
  if (!ok) return Close(Outcome());
  MutexLock lock(&mutex_);
  if (!finished_) StartRead(&request_);
}

void RegionStream::OnCancel() { Close(Outcome()); }

void RegionStream::End() { Close(Stopping()); }

void RegionStream::Close(const Outcome& outcome) {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(finished_, true)) return;
  }
  // Before the status goes out: a client that has it finds the ids gone. One attached meanwhile goes in OnDone.
  state_->regions()->Detach(this);
  if (!outcome.ok()) context_->AddTrailingMetadata(kStatusMetadataKey, ToStatusMetadata(outcome));
  state_->counters.CountRpc(Rpc::kAttachRegions, context_->IsCancelled() ? absl::StatusCode::kCancelled : outcome.code);
  Finish(ToGrpcStatus(outcome));
}

void RegionStream::OnDone() {
  state_->regions()->Detach(this);
  state_->RemoveStream(this);
  const std::shared_ptr<RegionStream> self = std::move(self_);
  state_->EndCall();
}

}  // namespace pleiad
