// ForwardRequest and ForwardResponse to and from gRPC's byte buffers, without a copy of the tensor in them. The bytes
// are those of the generated classes, which the other end may use. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "pleiad/v1/ple.pb.h"
#include "proto/wire/tensor_bytes.h"

namespace pleiad {

// Reads a message as its ParseFromString would, but for two things: where its tensor has `data`, that field is set and
// empty and the bytes are in `tensor`, which is empty otherwise; and unknown fields above the tensor's number are not
// kept. `buffer` is empty afterwards. False: the bytes are no such message; `message` and `tensor` are then
// unspecified.
bool ParseForwardMessage(grpc::ByteBuffer* buffer, v1::ForwardRequest* message, TensorBytes* tensor);
bool ParseForwardMessage(grpc::ByteBuffer* buffer, v1::ForwardResponse* message, TensorBytes* tensor);

// Of what a request has beside the data of its tensor, which takes many times its bytes once it is parsed.
struct ForwardRequestLimits {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  uint64_t segments = std::numeric_limits<uint64_t>::max();
};
enum class ForwardRequestParse : uint8_t { kPlain, kWhole, kTooLarge, kMalformed };

// The same within limits; `buffer` stays as it is. kTooLarge: `message` has its request_id, wherever that stood, and of
// the rest what came before the limit. kPlain: whole, of the shapes that clients mostly send, which ReadPlainRequest
// reads; it has no unknown fields.
ForwardRequestParse ParseForwardRequest(const grpc::ByteBuffer& buffer, const ForwardRequestLimits& limits,
                                        v1::ForwardRequest* message, TensorBytes* tensor);
// The same with the parser of the generated class alone, whose rules of merging and of malformed bytes count; never
// kPlain.
ForwardRequestParse ParseAnyForwardRequest(const grpc::ByteBuffer& buffer, const ForwardRequestLimits& limits,
                                           v1::ForwardRequest* message, TensorBytes* tensor);

// Writes a message as its SerializeAsString would. It has no unknown fields.
grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardRequest& message);
grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardResponse& message);
// The same with a tensor: `message` has none, the result has one of `dtype` whose `data` are the slices, which the
// result refers to. All together stay below 2 GiB.
grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardRequest& message, v1::DType dtype,
                                         absl::Span<const grpc::Slice> data);
grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardResponse& message, v1::DType dtype,
                                         absl::Span<const grpc::Slice> data);

// A slice of memory that is kept by `owner`, which is let go on any thread when the last reference to the slice goes:
// gRPC has sent or dropped it. The bytes must not change until then.
grpc::Slice ReferenceSlice(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner);

}  // namespace pleiad
