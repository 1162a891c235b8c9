#include "client/internal/region_stream.h"

#include "client/internal/convert.h"

namespace pleiad::client::internal {

bool RegionStream::Wait(gpr_timespec deadline) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) return ok;
  timed_out_ = true;
  context_.TryCancel();
  (void)queue_.Next(&tag, &ok);
  return false;
}

absl::Status RegionStream::Attach(const v1::AttachRegionsRequest& request, gpr_timespec deadline) {
  access_->AddTo(&context_);
  stream_ = stub_->AsyncAttachRegions(&context_, &queue_, nullptr);
  v1::AttachRegionsResponse response;
  bool ok = Wait(deadline);
  if (ok) {
    stream_->Write(request, nullptr);
    ok = Wait(deadline);
  }
  if (ok) {
    stream_->Read(&response, nullptr);
    ok = Wait(deadline);
  }
  if (ok) {
    id_ = response.region_id();
    return ToStatus(response.status());
  }
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  (void)Wait(deadline);
  stream_ = nullptr;
  if (timed_out_) return absl::DeadlineExceededError("AttachRegions: no answer in time");
  if (status.ok()) return absl::UnavailableError("AttachRegions: the server ended the stream");
  return CallStatus(status, context_);
}

RegionStream::~RegionStream() {
  if (stream_ != nullptr) {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    (void)queue_.Next(&tag, &ok);
  }
  queue_.Shutdown();
}

}  // namespace pleiad::client::internal
