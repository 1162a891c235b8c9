#include "client/internal/step_message.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "client/internal/convert.h"
#include "grpcpp/support/slice.h"
#include "proto/wire/field_reader.h"
#include "proto/wire/field_writer.h"
#include "proto/wire/forward_message.h"

namespace pleiad::client::internal {
namespace {

using v1::ForwardRequest;
using v1::ForwardResponse;

// Beyond that an answer in several slices is not copied together.
constexpr size_t kMostCopied = 64 << 10;

template <typename Out>
void PutRegion(Out& out, uint32_t number, const RegionSpan& span) {
  PutMessage(out, number, [&span](auto& to) {
    PutFixed64(to, v1::RegionRef::kRegionIdFieldNumber, span.region_id);
    PutVarint(to, v1::RegionRef::kOffsetFieldNumber, span.offset);
    PutVarint(to, v1::RegionRef::kBytesFieldNumber, span.bytes);
  });
}

template <typename Out>
void PutSegment(Out& out, const WireSegment& segment) {
  PutFixed64(out, v1::Segment::kSequenceIdFieldNumber, static_cast<uint64_t>(segment.sequence));
  PutVarint(out, v1::Segment::kNumTokensFieldNumber, segment.num_tokens);
  PutVarint(out, v1::Segment::kFreshFieldNumber, segment.fresh ? 1 : 0);
  if (!segment.position.has_value()) return;
  out.Varint(v1::Segment::kPositionFieldNumber << 3);
  out.Varint(*segment.position);
}

template <typename Out>
void PutOutput(Out& out, const WireStep& step) {
  PutVarint(out, v1::Output::kKindFieldNumber, step.output_kind == OutputKind::kHighway ? 0 : 1);
  if (step.output_dtype.has_value()) PutVarint(out, v1::Output::kDtypeFieldNumber, ToWire(*step.output_dtype));
  if (step.output_region.has_value()) PutRegion(out, v1::Output::kRegionFieldNumber, *step.output_region);
}

// A highway that is not sent.
template <typename Out>
void PutHighway(Out& out, const Highway& highway) {
  PutVarint(out, v1::Tensor::kDtypeFieldNumber, ToWire(highway.dtype));
  if (highway.zeros) {
    PutVarint(out, v1::Tensor::kZerosFieldNumber, 1);
  } else {
    PutRegion(out, v1::Tensor::kRegionFieldNumber, *highway.region);
  }
}

// All but a highway's bytes. `ids_bytes`: VarintsSize of the token ids.
template <typename Out>
void PutStep(Out& out, const WireStep& step, size_t ids_bytes) {
  const bool prestage = step.mode == StepMode::kPrestage;
  PutVarint(out, ForwardRequest::kRequestIdFieldNumber, step.request_id);
  PutVarint(out, ForwardRequest::kEpochFieldNumber, step.epoch);
  PutVarint(out, ForwardRequest::kModeFieldNumber, prestage ? v1::MODE_PRESTAGE : v1::MODE_FORWARD);
  if (step.layer_index.has_value()) {
    out.Varint(ForwardRequest::kLayerIndexFieldNumber << 3);
    out.Varint(*step.layer_index);
  }
  for (const WireSegment& segment : step.segments) {
    PutMessage(out, ForwardRequest::kSegmentsFieldNumber, [&segment](auto& to) { PutSegment(to, segment); });
  }
  if (!step.token_ids.empty()) {
    out.Varint(ForwardRequest::kTokenIdsFieldNumber << 3 | 2);
    out.Varint(ids_bytes);
    out.Varints(step.token_ids, ids_bytes);
  }
  if (!prestage) {
    PutMessage(out, ForwardRequest::kOutputFieldNumber, [&step](auto& to) { PutOutput(to, step); });
  }
  PutVarint(out, ForwardRequest::kTimeoutMsFieldNumber, step.timeout_ms);
  if (!step.release_after.empty()) {
    out.Varint(ForwardRequest::kReleaseAfterFieldNumber << 3 | 2);
    out.Varint(8 * step.release_after.size());
    for (const SequenceId id : step.release_after) out.Fixed64(static_cast<uint64_t>(id));
  }
  if (step.token_region.has_value()) PutRegion(out, ForwardRequest::kTokenRegionFieldNumber, *step.token_region);
  if (!prestage && (step.highway.zeros || step.highway.region.has_value())) {
    PutMessage(out, ForwardRequest::kHighwayFieldNumber, [&step](auto& to) { PutHighway(to, step.highway); });
  }
}

bool ReadSegment(FieldReader fields, SegmentResult* segment) {
  uint32_t number = 0, wire_type = 0;
  while (!fields.done()) {
    if (!fields.Tag(&number, &wire_type)) return false;
    if (number == v1::SegmentResult::kSequenceIdFieldNumber && wire_type == 1) {
      uint64_t id = 0;
      if (!fields.Fixed64(&id)) return false;
      segment->sequence = SequenceId{id};
    } else if (number == v1::SegmentResult::kPositionFieldNumber && wire_type == 0) {
      if (!fields.Varint(&segment->position)) return false;
    } else if (number == v1::SegmentResult::kLowFieldNumber && wire_type == 0) {
      if (!fields.Varint(&segment->low)) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool ReadStats(FieldReader fields, StepStats* stats) {
  std::array<uint64_t, v1::StepStats::kDeviceUsFieldNumber + 1> values{};
  uint32_t number = 0, wire_type = 0;
  while (!fields.done()) {
    if (!fields.Tag(&number, &wire_type) || wire_type != 0 || number == 0 || number >= values.size()) return false;
    if (!fields.Varint(&values[number])) return false;
  }
  stats->rows = values[v1::StepStats::kRowsFieldNumber];
  stats->hits = values[v1::StepStats::kHitsFieldNumber];
  stats->misses = values[v1::StepStats::kMissesFieldNumber];
  stats->joins = values[v1::StepStats::kJoinsFieldNumber];
  stats->batch_tokens = static_cast<uint32_t>(values[v1::StepStats::kBatchTokensFieldNumber]);
  // As ToReply reads them.
  stats->queue = absl::Microseconds(values[v1::StepStats::kQueueUsFieldNumber]);
  stats->resolve = absl::Microseconds(values[v1::StepStats::kResolveUsFieldNumber]);
  stats->device = absl::Microseconds(values[v1::StepStats::kDeviceUsFieldNumber]);
  return true;
}

// Of one whose bytes are not in the message.
bool ReadOutput(FieldReader fields, StepResult* result) {
  uint32_t number = 0, wire_type = 0;
  while (!fields.done()) {
    if (!fields.Tag(&number, &wire_type)) return false;
    if (number == v1::Tensor::kDtypeFieldNumber && wire_type == 0) {
      uint64_t dtype = 0;
      if (!fields.Varint(&dtype) || dtype > v1::DType_MAX) return false;
      result->output_dtype = dtype == v1::DTYPE_BF16 ? DType::kBf16 : DType::kF32;
    } else if (number == v1::Tensor::kRegionFieldNumber && wire_type == 2) {
      FieldReader region;
      uint64_t ignored = 0;
      if (!fields.Message(&region)) return false;
      while (!region.done()) {
        if (!region.Tag(&number, &wire_type)) return false;
        const bool fixed = number == v1::RegionRef::kRegionIdFieldNumber && wire_type == 1;
        const bool varint = (number == v1::RegionRef::kOffsetFieldNumber && wire_type == 0) ||
                            (number == v1::RegionRef::kBytesFieldNumber && wire_type == 0);
        if (!(fixed && region.Fixed64(&ignored)) && !(varint && region.Varint(&ignored))) return false;
      }
    } else {
      return false;
    }
  }
  return true;
}

bool ReadReply(FieldReader fields, WireReply* reply) {
  StepResult& result = *reply->result;
  uint32_t seen = 0;  // bits of field numbers
  uint32_t number = 0, wire_type = 0;
  while (!fields.done()) {
    if (!fields.Tag(&number, &wire_type)) return false;
    const bool again = (seen >> number & 1) != 0;
    seen |= 1u << number;
    FieldReader message;
    uint64_t value = 0;
    const bool whole = wire_type == 2 ? fields.Message(&message) : wire_type == 0 && fields.Varint(&value);
    if (!whole) return false;
    const bool of_message = wire_type == 2;
    if (number == ForwardResponse::kSegmentsFieldNumber && of_message) {
      if (!ReadSegment(message, &result.segments.emplace_back())) return false;
      continue;
    }
    if (again) return false;
    if (number == ForwardResponse::kRequestIdFieldNumber && !of_message) {
      reply->request_id = value;
    } else if (number == ForwardResponse::kStatusFieldNumber && of_message) {
      if (!message.done()) return false;
    } else if (number == ForwardResponse::kStatsFieldNumber && of_message) {
      if (!ReadStats(message, &result.stats)) return false;
    } else if (number == ForwardResponse::kDrainingFieldNumber && !of_message) {
      result.draining = value != 0;
    } else if (number == ForwardResponse::kOutputFieldNumber && of_message) {
      if (!ReadOutput(message, &result)) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

grpc::ByteBuffer SerializeStep(const WireStep& step) {
  const Highway& highway = step.highway;
  const size_t ids_bytes = VarintsSize(step.token_ids);
  FieldCounter counter;
  PutStep(counter, step, ids_bytes);
  if (step.sends_highway()) PutTensorHead(counter, ToWire(highway.dtype), highway.data.size());
  grpc::Slice slices[2] = {grpc::Slice(counter.size()), grpc::Slice()};
  FieldWriter writer(const_cast<uint8_t*>(slices[0].begin()));
  PutStep(writer, step, ids_bytes);
  if (!step.sends_highway()) return grpc::ByteBuffer(slices, 1);
  PutTensorHead(writer, ToWire(highway.dtype), highway.data.size());
  slices[1] = highway.owner != nullptr ? ReferenceSlice(highway.data, highway.owner)
                                       : grpc::Slice(highway.data.data(), highway.data.size());
  return grpc::ByteBuffer(slices, 2);
}

std::optional<WireReply> ReadPlainReply(const grpc::ByteBuffer& message) {
  grpc::Slice bytes;
  if (!message.Valid()) return std::nullopt;
  if (!message.TrySingleSlice(&bytes).ok() &&
      (message.Length() > kMostCopied || !message.DumpToSingleSlice(&bytes).ok())) {
    return std::nullopt;
  }
  std::optional<WireReply> reply(std::in_place);
  // A segment's answer takes about so many bytes.
  reply->result->segments.reserve(std::min<size_t>(bytes.size(), kMostCopied) / 16);
  if (!ReadReply(FieldReader(bytes.begin(), bytes.end()), &*reply)) return std::nullopt;
  return reply;
}

}  // namespace pleiad::client::internal
