// Messages of the small RPCs from gRPC's byte buffers, within bounds, and back. A parsed message takes many times the
// bytes of one that is made of empty submessages or of unknown fields, so these are counted first. Pure functions,
// thread-safe.
#pragma once

#include <cstdint>

#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace pleiad {

struct MessageLimits {
  uint64_t bytes = 0;
  uint64_t parts = 0;  // submessages, repeated strings and unknown fields, those in submessages too
};
enum class BoundedParse : uint8_t { kWhole, kTooLarge, kMalformed };

// Reads `message`, which is empty, as ParseFromString does; kTooLarge, with nothing read, where the bytes are beyond
// the limits, and kMalformed, with `message` unspecified, where they are no such message. `buffer` stays as it is.
BoundedParse ParseBounded(const grpc::ByteBuffer& buffer, const MessageLimits& limits,
                          google::protobuf::Message* message);

// Of less than 2 GiB.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace pleiad
