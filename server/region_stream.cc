#include "server/region_stream.h"

#include <utility>

#include "server/convert.h"

namespace pleiad {
namespace {

// A path, handles and numbers.
constexpr MessageLimits kRequestLimits{.bytes = 64 << 10, .parts = 64};

}  // namespace

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
  v1::AttachRegionsRequest request;
  const BoundedParse parse = ParseBounded(request_, kRequestLimits, &request);
  const uint64_t bytes = request_.Length();
  request_.Clear();
  if (parse == BoundedParse::kTooLarge) return Close(TooLargeRequest(bytes, kRequestLimits));
  if (parse == BoundedParse::kMalformed) return Close(MalformedRequest("AttachRegionsRequest"));
  // Not on this thread of gRPC's: the device's driver may take seconds to pin the pages of a large file.
  state_->BeginCall();
  state_->regions()->Run([self = shared_from_this(), asked = std::move(request)] {
    ServiceState* const state = self->state_;
    self->Attach(asked);
    state->EndCall();
  });
}

void RegionStream::Attach(const v1::AttachRegionsRequest& request) {
  const RegionTable::Attached attached = state_->regions()->Attach(request, this, state_->engine(), client_);
  v1::AttachRegionsResponse response;
  *response.mutable_status() = ToProto(attached.outcome);
  response.set_region_id(attached.id);
  response_ = SerializeMessage(response);
  {
    MutexLock lock(&mutex_);
    if (!finished_) {
      StartWrite(&response_);
      return;
    }
  }
  state_->regions()->Detach(this);  // the stream ended meanwhile
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
  // Before the status goes out: a client that has it finds the ids gone.
  state_->regions()->Detach(this);
  if (!outcome.ok()) context_->AddTrailingMetadata(kStatusMetadataKey, ToStatusMetadata(outcome));
  state_->counters.CountRpc(Rpc::kAttachRegions, context_->IsCancelled() ? absl::StatusCode::kCancelled : outcome.code);
  Finish(ToGrpcStatus(outcome));
}

void RegionStream::OnDone() {
  state_->RemoveStream(this);
  const std::shared_ptr<RegionStream> self = std::move(self_);
  state_->EndCall();
}

}  // namespace pleiad
