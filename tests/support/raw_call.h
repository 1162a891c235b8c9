// Calls of the Forward RPCs with any bytes as their messages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad::testing {

struct RawResult {
  grpc::Status status;
  std::vector<v1::ForwardResponse> responses;
};

// ForwardStream: writes the messages, half-closes and reads to the end. Writes that come after the server has ended the
// stream are lost.
RawResult StreamRaw(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& messages);

// Forward.
RawResult ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& message);

}  // namespace pleiad::testing
