// The Ple service over an Engine.
#pragma once

#include <memory>

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "server/service_state.h"
#include "server/unary_call.h"

namespace pleiad {

// Messages are taken and given as bytes, so that they are bounded before they are parsed.
// clang-format off
using PleServiceBase =
    v1::Ple::WithRawCallbackMethod_GetModel<
    v1::Ple::WithRawCallbackMethod_OpenSequence<
    v1::Ple::WithRawCallbackMethod_Forward<
    v1::Ple::WithRawCallbackMethod_ForwardStream<
    v1::Ple::WithRawCallbackMethod_Lookup<
    v1::Ple::WithRawCallbackMethod_GetSequence<
    v1::Ple::WithRawCallbackMethod_Snapshot<
    v1::Ple::WithRawCallbackMethod_Restore<
    v1::Ple::WithRawCallbackMethod_Release<
    v1::Ple::WithRawCallbackMethod_AttachRegions<
    v1::Ple::Service>>>>>>>>>>;
// clang-format on

// One instance per grpc::Server; they share `state`, which outlives them.
class PleService final : public PleServiceBase {
 public:
  explicit PleService(ServiceState* state) : state_(state) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* OpenSequence(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetSequence(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Snapshot(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ForwardStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttachRegions(
      grpc::CallbackServerContext* context) override;

 private:
  using Call = std::shared_ptr<UnaryCall>;

  // Parses the request and calls `handle`, which lets the call be completed; its messages live as long as the call.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Serve(Rpc rpc, void (PleService::*handle)(const Call&, const Request*, Response*),
                                  grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response);
  void DoGetModel(const Call& call, const v1::GetModelRequest* request, v1::GetModelResponse* response);
  void DoOpenSequence(const Call& call, const v1::OpenSequenceRequest* request, v1::OpenSequenceResponse* response);
  void DoLookup(const Call& call, const v1::LookupRequest* request, v1::LookupResponse* response);
  void DoGetSequence(const Call& call, const v1::GetSequenceRequest* request, v1::GetSequenceResponse* response);
  void DoSnapshot(const Call& call, const v1::SnapshotRequest* request, v1::SnapshotResponse* response);
  void DoRestore(const Call& call, const v1::RestoreRequest* request, v1::RestoreResponse* response);
  void DoRelease(const Call& call, const v1::ReleaseRequest* request, v1::ReleaseResponse* response);

  ServiceState* const state_;
};

}  // namespace pleiad
