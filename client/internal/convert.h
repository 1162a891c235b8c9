// Between the library's plain values and the generated messages.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/types.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad::client::internal {

// Payload of an absl::Status: a serialised v1::Status.
inline constexpr char kStatusTypeUrl[] = "type.googleapis.com/pleiad.v1.Status";
// Trailing metadata of a unary call: the same.
inline constexpr char kStatusMetadata[] = "pleiad-status-bin";

absl::Status ToStatus(const v1::Status& status);
// `details`: a serialised v1::Status, or empty.
absl::Status ToStatus(const grpc::Status& status, const std::string& details);

// How a call ended, with the details that its trailing metadata has.
absl::Status CallStatus(const grpc::Status& status, const grpc::ClientContext& context);

ModelInfo ToModelInfo(const v1::GetModelResponse& response);
SequenceStatus ToSequenceStatus(const v1::GetSequenceResponse& response);
LayerAux ToLayerAux(v1::LayerAux* layer);
void ToWire(const LayerAux& layer, v1::LayerAux* out);
void ToWire(const OpenOptions& options, v1::OpenSequenceRequest* out);
void ToWire(const LookupQuery& query, v1::LookupRequest* out);
void ToWire(const RegionSpan& span, v1::RegionRef* out);
v1::DType ToWire(DType dtype);
// Copies the highway.
void ToWire(const WireStep& step, v1::ForwardRequest* out);
// Takes the output out of `response`.
WireReply ToReply(v1::ForwardResponse* response);

}  // namespace pleiad::client::internal
