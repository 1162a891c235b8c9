// Between the wire's messages and the engine's structs. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/engine/engine.h"
#include "core/engine/failure.h"
#include "grpcpp/support/status.h"
#include "pleiad/v1/ple.pb.h"
#include "proto/wire/bounded_message.h"
#include "proto/wire/tensor_bytes.h"
#include "server/limits.h"

namespace pleiad {

// The metadata key of a serialised pleiad.v1.Status.
inline constexpr char kStatusMetadataKey[] = "pleiad-status-bin";

// The engine's request of a message that had `message_bytes`; `tensor` has the bytes of the highway, which are not in
// `request`, and must outlive the result. What the engine cannot see (unknown enum values, a message above
// max_message_bytes) is put into `refused`. Regions and `output.allocate` are left to the caller.
StepRequest ToStepRequest(const v1::ForwardRequest& request, const TensorBytes& tensor, uint64_t message_bytes,
                          const ServiceLimits& limits);

uint64_t SumTokens(const v1::ForwardRequest& request);

// Bytes of the output tensor the request asks for; 0 where it will be refused for its size.
uint64_t OutputBytes(const v1::ForwardRequest& request, const ServiceLimits& limits);

// All but the tensor.
void FillResponse(const StepResult& result, v1::ForwardResponse& response);

v1::DType ToProto(DType dtype);
v1::Status ToProto(const Outcome& outcome);

// As the RPC's status. The message is cut to 1 KiB (3 KiB when gRPC escapes all of it): status and metadata share
// gRPC's 8 KiB of headers.
grpc::Status ToGrpcStatus(const Outcome& outcome);
// The value of kStatusMetadataKey: at most 3 KiB, which gRPC sends as base64. Texts are cut, and of many details only
// the first that fit are there.
std::string ToStatusMetadata(const Outcome& outcome);

OpenRequest ToOpenRequest(const v1::OpenSequenceRequest& request);
LookupRequest ToLookupRequest(const v1::LookupRequest& request);
std::vector<CarryBlob> ToCarryBlobs(const google::protobuf::RepeatedPtrField<v1::LayerAux>& layers);
void FillLayerAux(std::vector<CarryBlob> layers, google::protobuf::RepeatedPtrField<v1::LayerAux>& out);

// Rules of the other RPCs that need no engine; nullopt when kept.
std::optional<Outcome> Check(const v1::OpenSequenceRequest& request);
std::optional<Outcome> CheckSequenceId(uint64_t sequence_id);

// Server-side refusals.
Outcome Loading();
Outcome Stopping();
// A message that does not parse.
Outcome MalformedRequest(const std::string& type = "ForwardRequest");
Outcome TooLargeRequest(uint64_t bytes, const MessageLimits& limits);
// A step with too many segments or too much beside its tensor.
Outcome TooLargeBesideTensor(const ServiceLimits& limits);
Outcome TooManyInFlight(const ServiceLimits& limits);
// INVALID_ARGUMENT: "field value: rule".
Outcome InvalidField(Reason reason, const std::string& field, const std::string& value, const std::string& rule);

}  // namespace pleiad
