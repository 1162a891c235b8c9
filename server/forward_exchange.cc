#include "server/forward_exchange.h"

#include <utility>

#include "proto/wire/forward_message.h"
#include "server/convert.h"

namespace pleiad {

bool ForwardExchange::Receive(grpc::ByteBuffer* message, const ServiceLimits& limits) {
  message_bytes_ = message->Length();
  message_ = *message;
  const ForwardRequestLimits bounds{.bytes = limits.request_bytes, .segments = limits.max_segments};
  const ForwardRequestParse parse = ParseForwardRequest(message, bounds, &request_, &tensor_);
  too_large_ = parse == ForwardRequestParse::kTooLarge;
  return parse != ForwardRequestParse::kMalformed;
}

uint64_t ForwardExchange::bytes(const ServiceLimits& limits, const RegionAccess& access) const {
  return message_bytes_ + request_.SpaceUsedLong() - sizeof(request_) + BytesBeside(request_, limits, access);
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
  return step;
}

grpc::ByteBuffer ForwardExchange::Answer(StepResult& result, bool draining) {
  v1::ForwardResponse response;
  if (result.outcome.ok() && regions_.has_output()) {
    if (auto lost = regions_.WriteOutput()) {
      result.outcome = *std::move(lost);
    } else {
      response.mutable_output()->set_dtype(ToProto(result.output_dtype));
      *response.mutable_output()->mutable_region() = regions_.output_ref();
    }
  }
  FillResponse(result, response);
  response.set_request_id(request_.request_id());
  response.set_draining(draining);
  v1::ForwardRequest().Swap(&request_);
  tensor_ = TensorBytes();
  message_.Clear();
  regions_ = StepRegions();
  const std::shared_ptr<std::byte[]> output = std::move(output_);
  if (!result.outcome.ok() || output == nullptr) return SerializeForwardMessage(response);
  const grpc::Slice slice = ReferenceSlice({output.get(), output_bytes_}, output);
  return SerializeForwardMessage(response, ToProto(result.output_dtype), {&slice, 1});
}

}  // namespace pleiad
