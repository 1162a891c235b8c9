// Steps and their answers between plain values and the bytes of ForwardRequest and ForwardResponse, past the generated
// classes: a step may have many segments.
#pragma once

#include <optional>

#include "client/connection.h"
#include "grpcpp/support/byte_buffer.h"

namespace pleiad::client::internal {

// The message of a step, byte for byte what the generated class of ToWire makes of it. The highway's bytes are copied,
// or referred to where they have an owner.
grpc::ByteBuffer SerializeStep(const WireStep& step);

// The answer that a message is, as ToReply reads it. Nothing where it is of another kind than a server mostly sends (a
// failed step, a tensor's bytes, a field that is new or there twice, or no message at all): ToReply is to read it.
std::optional<WireReply> ReadPlainReply(const grpc::ByteBuffer& message);

}  // namespace pleiad::client::internal
