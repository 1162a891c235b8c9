// The refusals of the protocol, one row each: how to get it, and what it must say.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "client/types.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace pleiad::testing {

inline constexpr uint32_t kRefusalMaxTokens = 64;

// Sequences of a server of TwoLayerSpec (zero-based layers 1 and 3), --max-tokens 64, --max-sequences 4, all taken.
struct Cast {
  const client::ModelInfo* model = nullptr;
  v1::Ple::Stub* stub = nullptr;
  // Layer 1 stands at 17 after steps of 12 and 5 (low 9), layer 3 at 20 after one of 20 (low 12). Epoch 5.
  uint64_t apart = 0;
  uint64_t level = 0;     // at 3 on both layers, never named an epoch
  uint64_t failed = 0;    // at 4 on both layers; its last step was refused
  uint64_t released = 0;  // names nothing
};

// What a call came back with: gRPC's code and the Status, from the response or the trailing metadata.
struct Reply {
  int code = 0;
  v1::Status status;
};

struct Refusal {
  std::string name;  // R<rule of the protocol>_<what>
  // A step, sent alone and on a stream; or any other call.
  std::function<v1::ForwardRequest(const Cast&)> step;
  std::function<Reply(const Cast&)> call;
  // What the first detail must say.
  int code = 0;
  v1::Reason reason = v1::REASON_UNSPECIFIED;
  std::string field;
  std::string value;  // part of it
  std::string limit;  // part of it
  std::optional<uint32_t> segment;
  int details = 1;
};
inline void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

std::vector<Refusal> RefusalRows();

template <typename Request, typename Response>
Reply CallOf(v1::Ple::Stub& stub,
             grpc::Status (v1::Ple::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             const Request& request, Response* response) {
  grpc::ClientContext context;
  const grpc::Status status = (stub.*method)(&context, request, response);
  Reply reply;
  reply.code = static_cast<int>(status.error_code());
  const auto& metadata = context.GetServerTrailingMetadata();
  if (const auto it = metadata.find("pleiad-status-bin"); it != metadata.end()) {
    reply.status.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
  }
  return reply;
}

// The step on a stream of its own.
Reply OnStream(v1::Ple::Stub& stub, const v1::ForwardRequest& request);

}  // namespace pleiad::testing
