#include "server/forward_exchange.h"

#include <algorithm>
#include <utility>

#include "proto/wire/field_writer.h"
#include "proto/wire/forward_message.h"
#include "server/convert.h"

namespace pleiad {
namespace {

// Asking protobuf what a message takes costs as much as reading a small one. In one of at most kSmallRest bytes beside
// its tensor each byte stands for at most so many: an empty segment, or an unknown field, has two.
constexpr uint64_t kSmallRest = 512;
constexpr uint64_t kMostPerByte = 32;

// What SpaceUsedLong, which asks every segment for its fields one by one, says beyond the message itself where there
// are no unknown fields.
uint64_t SpaceUsed(const v1::ForwardRequest& request) {
  uint64_t bytes = request.token_ids().SpaceUsedExcludingSelfLong() +
                   request.release_after().SpaceUsedExcludingSelfLong() +
                   static_cast<uint64_t>(request.segments().Capacity()) * sizeof(void*) +
                   static_cast<uint64_t>(request.segments_size()) * sizeof(v1::Segment);
  bytes += request.has_output() ? sizeof(v1::Output) : 0;
  bytes += request.output().has_region() ? sizeof(v1::RegionRef) : 0;
  bytes += request.has_token_region() ? sizeof(v1::RegionRef) : 0;
  bytes += request.has_highway() ? sizeof(v1::Tensor) : 0;
  bytes += request.highway().has_region() ? sizeof(v1::RegionRef) : 0;
  return bytes;
}

uint64_t Microseconds(absl::Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(duration)));
}

// Of a step that succeeded, as FillResponse and the generated class would write it.
struct PlainAnswer {
  const StepResult& result;
  uint64_t request_id;
  uint64_t draining;
  const v1::RegionRef* region;  // of the output, or null

  template <typename Out>
  void Put(Out& out) const {
    PutVarint(out, v1::ForwardResponse::kRequestIdFieldNumber, request_id);
    PutMessage(out, v1::ForwardResponse::kStatusFieldNumber, [](auto&) {});
    for (const StepSegmentResult& segment : result.segments) {
      PutMessage(out, v1::ForwardResponse::kSegmentsFieldNumber, [&segment](auto& to) {
        PutFixed64(to, v1::SegmentResult::kSequenceIdFieldNumber, segment.sequence.value());
        PutVarint(to, v1::SegmentResult::kPositionFieldNumber, segment.position.value());
        PutVarint(to, v1::SegmentResult::kLowFieldNumber, segment.low.value());
      });
    }
    PutMessage(out, v1::ForwardResponse::kStatsFieldNumber, [this](auto& to) { this->PutStats(to); });
    PutVarint(out, v1::ForwardResponse::kDrainingFieldNumber, draining);
    if (region == nullptr) return;
    PutMessage(out, v1::ForwardResponse::kOutputFieldNumber, [this](auto& to) {
      PutVarint(to, v1::Tensor::kDtypeFieldNumber, ToProto(result.output_dtype));
      PutMessage(to, v1::Tensor::kRegionFieldNumber, [this](auto& ref) {
        PutFixed64(ref, v1::RegionRef::kRegionIdFieldNumber, region->region_id());
        PutVarint(ref, v1::RegionRef::kOffsetFieldNumber, region->offset());
        PutVarint(ref, v1::RegionRef::kBytesFieldNumber, region->bytes());
      });
    });
  }

 private:
  template <typename Out>
  void PutStats(Out& out) const {
    const StepStats& stats = result.stats;
    PutVarint(out, v1::StepStats::kRowsFieldNumber, stats.rows.hits + stats.rows.misses + stats.rows.joins);
    PutVarint(out, v1::StepStats::kHitsFieldNumber, stats.rows.hits);
    PutVarint(out, v1::StepStats::kMissesFieldNumber, stats.rows.misses);
    PutVarint(out, v1::StepStats::kJoinsFieldNumber, stats.rows.joins);
    PutVarint(out, v1::StepStats::kBatchTokensFieldNumber, stats.batch_tokens);
    PutVarint(out, v1::StepStats::kQueueUsFieldNumber, Microseconds(stats.queue));
    PutVarint(out, v1::StepStats::kResolveUsFieldNumber, Microseconds(stats.resolve));
    PutVarint(out, v1::StepStats::kDeviceUsFieldNumber, Microseconds(stats.device));
  }
};

}  // namespace

bool ForwardExchange::Receive(grpc::ByteBuffer* message, const ServiceLimits& limits) {
  message_bytes_ = message->Length();
  message_.Swap(message);
  arena_.emplace(first_block_, sizeof(first_block_));
  request_ = google::protobuf::Arena::CreateMessage<v1::ForwardRequest>(&*arena_);
  const ForwardRequestLimits bounds{.bytes = limits.request_bytes, .segments = limits.max_segments};
  const ForwardRequestParse parse = ParseForwardRequest(message_, bounds, request_, &tensor_);
  plain_ = parse == ForwardRequestParse::kPlain;
  too_large_ = parse == ForwardRequestParse::kTooLarge;
  return parse != ForwardRequestParse::kMalformed;
}

uint64_t ForwardExchange::bytes(const ServiceLimits& limits, const RegionAccess& access) const {
  uint64_t kept = 0;
  if (const uint64_t rest = message_bytes_ - tensor_.size(); rest <= kSmallRest) {
    kept = rest * kMostPerByte;
  } else {
    kept = plain_ ? SpaceUsed(request()) : request().SpaceUsedLong() - sizeof(request());
  }
  return message_bytes_ + kept + BytesBeside(request(), limits, access);
}

StepRequest ForwardExchange::MakeStep(const ServiceLimits& limits, const RegionAccess& access, OutputPool* outputs) {
  StepRequest step = ToStepRequest(request(), tensor_, message_bytes_, limits);
  if (too_large_) step.refused = TooLargeBesideTensor(limits);
  if (!step.refused) step.refused = regions_.Begin(request(), access, limits, outputs, &step);
  step.output.allocate = [this, outputs](uint64_t bytes) {
    if (regions_.has_output()) return regions_.AllocateOutput(outputs, bytes);
    // The device writes all of it.
    output_ = outputs->Take(bytes);
    output_bytes_ = bytes;
    return output_.get();
  };
  if (regions_.delivers_output()) step.output.deliver = [this] { return regions_.WriteOutput(); };
  return step;
}

grpc::ByteBuffer ForwardExchange::Answer(const StepResult& result, bool draining) {
  const std::shared_ptr<std::byte[]> output = std::move(output_);
  if (!result.outcome.ok()) {
    v1::ForwardResponse response;
    FillResponse(result, response);
    response.set_request_id(request().request_id());
    response.set_draining(draining);
    return SerializeForwardMessage(response);
  }
  const PlainAnswer answer{.result = result,
                           .request_id = request().request_id(),
                           .draining = draining ? 1u : 0u,
                           .region = regions_.has_output() ? &regions_.output_ref() : nullptr};
  FieldCounter counter;
  answer.Put(counter);
  if (output != nullptr) PutTensorHead(counter, ToProto(result.output_dtype), output_bytes_);
  grpc::Slice slices[2] = {grpc::Slice(counter.size()), grpc::Slice()};
  FieldWriter writer(const_cast<uint8_t*>(slices[0].begin()));
  answer.Put(writer);
  if (output == nullptr) return grpc::ByteBuffer(slices, 1);
  PutTensorHead(writer, ToProto(result.output_dtype), output_bytes_);
  slices[1] = ReferenceSlice({output.get(), output_bytes_}, output);
  return grpc::ByteBuffer(slices, 2);
}

void ForwardExchange::Forget() {
  request_ = nullptr;
  arena_.reset();
  tensor_ = TensorBytes();
  message_.Clear();
  regions_ = StepRegions();
}

}  // namespace pleiad
