// One step as it comes and as it is answered, in a unary call or on a stream. Its tensor stays in the bytes that gRPC
// received until it is answered; its output lies in memory of its own until gRPC has sent it. What is in regions is
// read when the engine's request is made, and written before the engine commits the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/engine/engine.h"
#include "google/protobuf/arena.h"
#include "grpcpp/support/byte_buffer.h"
#include "pleiad/v1/ple.pb.h"
#include "proto/wire/tensor_bytes.h"
#include "server/limits.h"
#include "server/output_pool.h"
#include "server/step_regions.h"

namespace pleiad {

// Its calls come one after another. Made by std::make_shared_for_overwrite: it holds memory that need not be zero.
class ForwardExchange {
 public:
  // Empties `message`. False: it is no ForwardRequest, and nothing else may be called. One with too much beside its
  // tensor is not read to its end, and refused.
  bool Receive(grpc::ByteBuffer* message, const ServiceLimits& limits);

  // Until Forget.
  const v1::ForwardRequest& request() const { return *request_; }
  // What it holds of the memory for messages: the request as it came and as it is kept, and the tensor of the response.
  uint64_t bytes(const ServiceLimits& limits, const RegionAccess& access = {}) const;
  // The engine's request. It points into the exchange, which stays where it is until the engine has answered.
  // `outputs` outlives the step.
  StepRequest MakeStep(const ServiceLimits& limits, const RegionAccess& access, OutputPool* outputs);
  // The response to the step with this result, which refers to the output. Once.
  grpc::ByteBuffer Answer(const StepResult& result, bool draining);
  // Drops what was received; after Answer, at the end.
  void Forget();

 private:
  // The last to go: gRPC 1.51 counts received slices in its quota, and under pressure crashes where the last reference
  // to one goes on a thread of ours; a byte buffer's destruction it is prepared for.
  grpc::ByteBuffer message_;
  // The request is in an arena: one with many segments is many objects. Those of 64 segments lie in its first block.
  // Only the thread that made the arena allocates from that block, so it is made by Receive.
  alignas(std::max_align_t) char first_block_[6 << 10];
  std::optional<google::protobuf::Arena> arena_;
  v1::ForwardRequest* request_ = nullptr;
  TensorBytes tensor_;
  bool plain_ = false;  // without unknown fields
  bool too_large_ = false;
  StepRegions regions_;
  uint64_t message_bytes_ = 0;
  std::shared_ptr<std::byte[]> output_;
  uint64_t output_bytes_ = 0;
};

}  // namespace pleiad
