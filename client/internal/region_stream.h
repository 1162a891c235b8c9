// An AttachRegions stream that holds one region.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/connection.h"
#include "client/internal/channel_access.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace pleiad::client::internal {

// The region lives as long as this.
class RegionStream final : public RegionLease {
 public:
  // Both outlive this.
  RegionStream(v1::Ple::Stub* stub, ChannelAccess* access) : stub_(stub), access_(access) {}
  ~RegionStream() override;

  // Once, first. Blocks until the server has answered or the deadline has passed (DeadlineExceeded).
  absl::Status Attach(const v1::AttachRegionsRequest& request, gpr_timespec deadline);

  uint64_t id() const override { return id_; }

 private:
  // Of the one operation under way: whether it succeeded; false too at the deadline, which ends the stream.
  bool Wait(gpr_timespec deadline);

  v1::Ple::Stub* const stub_;
  ChannelAccess* const access_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::AttachRegionsRequest, v1::AttachRegionsResponse>> stream_;
  bool timed_out_ = false;
  uint64_t id_ = 0;
};

}  // namespace pleiad::client::internal
