#include "server/forward_exchange.h"

#include <utility>

#include "proto/wire/forward_message.h"
#include "server/convert.h"

namespace pleiad {
namespace {

// Asking protobuf what a message takes costs as much as reading a small one. In one of at most kSmallRest bytes beside
// its tensor each byte stands for at most so many: an empty segment, or an unknown field, has two.
constexpr uint64_t kSmallRest = 512;
constexpr uint64_t kMostPerByte = 32;

}  // namespace

bool ForwardExchange::Receive(grpc::ByteBuffer* message, const ServiceLimits& limits) {
  message_bytes_ = message->Length();
  message_ = *message;
  const ForwardRequestLimits bounds{.bytes = limits.request_bytes, .segments = limits.max_segments};
  const ForwardRequestParse parse = ParseForwardRequest(message, bounds, &request_, &tensor_);
  too_large_ = parse == ForwardRequestParse::kTooLarge;
  return parse != ForwardRequestParse::kMalformed;
}

uint64_t ForwardExchange::bytes(const ServiceLimits& limits, const RegionAccess& access) const {
  const uint64_t rest = message_bytes_ - tensor_.size();
  const uint64_t kept = rest <= kSmallRest ? rest * kMostPerByte : request_.SpaceUsedLong() - sizeof(request_);
  return message_bytes_ + kept + BytesBeside(request_, limits, access);
}

StepRequest ForwardExchange::MakeStep(const ServiceLimits& limits, const RegionAccess& access, OutputPool* outputs) {
  StepRequest step = ToStepRequest(request_, tensor_, message_bytes_, limits);
  if (too_large_) step.refused = TooLargeBesideTensor(limits);
  if (!step.refused) step.refused = regions_.Begin(request_, access, limits, outputs, &step);
  step.output.allocate = [this, outputs](uint64_t bytes) {
    if (regions_.has_output()) return regions_.AllocateOutput(outputs, bytes);
    // The device writes all of it.
    output_ = outputs->Take(bytes);
    output_bytes_ = bytes;
    return output_.get();
  };
  if (regions_.copies_output()) step.output.deliver = [this] { return regions_.WriteOutput(); };
  return step;
}

grpc::ByteBuffer ForwardExchange::Answer(const StepResult& result, bool draining) {
  v1::ForwardResponse response;
  if (result.outcome.ok() && regions_.has_output()) {
    response.mutable_output()->set_dtype(ToProto(result.output_dtype));
    *response.mutable_output()->mutable_region() = regions_.output_ref();
  }
  FillResponse(result, response);
  response.set_request_id(request_.request_id());
  response.set_draining(draining);
  const std::shared_ptr<std::byte[]> output = std::move(output_);
  if (!result.outcome.ok() || output == nullptr) return SerializeForwardMessage(response);
  const grpc::Slice slice = ReferenceSlice({output.get(), output_bytes_}, output);
  return SerializeForwardMessage(response, ToProto(result.output_dtype), {&slice, 1});
}

void ForwardExchange::Forget() {
  v1::ForwardRequest().Swap(&request_);
  tensor_ = TensorBytes();
  message_.Clear();
  regions_ = StepRegions();
}

}  // namespace pleiad
