// Reads the requests that clients mostly send, without the parser of the generated classes and, where all but the
// tensor's data lies in one slice, without a copy: each step waits for it. Pure functions, thread-safe.
#pragma once

#include "absl/types/span.h"
#include "grpcpp/support/slice.h"
#include "pleiad/v1/ple.pb.h"
#include "proto/wire/forward_message.h"
#include "proto/wire/tensor_bytes.h"

namespace pleiad {

// Reads the message that `slices` are together. True: `message` and `tensor` are what ParseAnyForwardRequest would make
// of it, kWhole. False: it is to read the message, whose bytes are broken, beyond the limits, or of another shape: with
// a field that is unknown or there twice, segments apart from one another, a tensor's data before the end, values out
// of range. `message` is then unspecified, of no more than the limits allow, and `tensor` empty.
bool ReadPlainRequest(absl::Span<const grpc::Slice> slices, const ForwardRequestLimits& limits,
                      v1::ForwardRequest* message, TensorBytes* tensor);

}  // namespace pleiad
