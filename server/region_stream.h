// One AttachRegions RPC: a request is answered before the next is read. Its regions are detached when it ends.
#pragma once

#include <memory>

#include "core/base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.pb.h"
#include "server/service_state.h"

namespace pleiad {

// Ends OK when the client half-closes; when it cancels; at bytes that are no AttachRegionsRequest or too many
// (INVALID_ARGUMENT); or by End().
class RegionStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public EndableStream,
                           public std::enable_shared_from_this<RegionStream> {
 public:
  // Starts reading. The result belongs to itself. The state has a region table.
  static RegionStream* Start(ServiceState* state, grpc::CallbackServerContext* context);

  // UNAVAILABLE.
  void End() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  RegionStream(ServiceState* state, grpc::CallbackServerContext* context)
      : state_(state), context_(context), client_(state->clients.NameOf(*context)) {}

  // Attaches and answers; on the thread for that.
  void Attach(const v1::AttachRegionsRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceState* const state_;
  grpc::CallbackServerContext* const context_;
  const std::string client_;
  grpc::ByteBuffer request_, response_;
  std::shared_ptr<RegionStream> self_;  // until OnDone

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pleiad
