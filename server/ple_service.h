// The Ple service over an Engine.
#pragma once

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "server/service_state.h"

namespace pleiad {

// Forward and ForwardStream take and give their messages as bytes.
// clang-format off
using PleServiceBase =
    v1::Ple::WithCallbackMethod_GetModel<
    v1::Ple::WithCallbackMethod_OpenSequence<
    v1::Ple::WithRawCallbackMethod_Forward<
    v1::Ple::WithRawCallbackMethod_ForwardStream<
    v1::Ple::WithCallbackMethod_Lookup<
    v1::Ple::WithCallbackMethod_GetSequence<
    v1::Ple::WithCallbackMethod_Snapshot<
    v1::Ple::WithCallbackMethod_Restore<
    v1::Ple::WithCallbackMethod_Release<
    v1::Ple::WithCallbackMethod_AttachRegions<
    v1::Ple::Service>>>>>>>>>>;
// clang-format on

// One instance per grpc::Server; they share `state`, which outlives them.
class PleService final : public PleServiceBase {
 public:
  explicit PleService(ServiceState* state) : state_(state) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* OpenSequence(grpc::CallbackServerContext* context, const v1::OpenSequenceRequest* request,
                                         v1::OpenSequenceResponse* response) override;
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ForwardStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context, const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override;
  grpc::ServerUnaryReactor* GetSequence(grpc::CallbackServerContext* context, const v1::GetSequenceRequest* request,
                                        v1::GetSequenceResponse* response) override;
  grpc::ServerUnaryReactor* Snapshot(grpc::CallbackServerContext* context, const v1::SnapshotRequest* request,
                                     v1::SnapshotResponse* response) override;
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* context, const v1::RestoreRequest* request,
                                    v1::RestoreResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerBidiReactor<v1::AttachRegionsRequest, v1::AttachRegionsResponse>* AttachRegions(
      grpc::CallbackServerContext* context) override;

 private:
  ServiceState* const state_;
};

}  // namespace pleiad
