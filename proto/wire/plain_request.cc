#include "proto/wire/plain_request.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "proto/wire/field_reader.h"

namespace pleiad {
namespace {

using v1::ForwardRequest;

// What comes before the tensor's data is copied together where it lies in several slices; beyond that it is not.
constexpr size_t kMostCopied = 64 << 10;
constexpr uint64_t kUint32Max = std::numeric_limits<uint32_t>::max();

constexpr uint32_t VarintTag(int number) { return static_cast<uint32_t>(number) << 3; }
constexpr uint32_t Fixed64Tag(int number) { return static_cast<uint32_t>(number) << 3 | 1; }
constexpr uint32_t BytesTag(int number) { return static_cast<uint32_t>(number) << 3 | 2; }
constexpr uint32_t kSegmentsTag = BytesTag(ForwardRequest::kSegmentsFieldNumber);

// Tags of a message in which no field comes twice.
class Tags {
 public:
  bool Next(FieldReader& fields, uint32_t* tag) {
    uint32_t number = 0, wire_type = 0;
    if (!fields.Tag(&number, &wire_type) || (seen_ >> number & 1) != 0) return false;
    seen_ |= 1u << number;
    *tag = number << 3 | wire_type;
    return true;
  }

 private:
  uint32_t seen_ = 0;  // bits of numbers
};

bool ReadRegion(FieldReader fields, v1::RegionRef* region) {
  Tags tags;
  uint32_t tag = 0;
  uint64_t value = 0;
  while (!fields.done()) {
    if (!tags.Next(fields, &tag)) return false;
    switch (tag) {
      case Fixed64Tag(v1::RegionRef::kRegionIdFieldNumber):
        if (!fields.Fixed64(&value)) return false;
        region->set_region_id(value);
        break;
      case VarintTag(v1::RegionRef::kOffsetFieldNumber):
        if (!fields.Varint(&value)) return false;
        region->set_offset(value);
        break;
      case VarintTag(v1::RegionRef::kBytesFieldNumber):
        if (!fields.Varint(&value)) return false;
        region->set_bytes(value);
        break;
      default:
        return false;
    }
  }
  return true;
}

bool ReadOutput(FieldReader fields, v1::Output* output) {
  Tags tags;
  uint32_t tag = 0;
  uint64_t value = 0;
  FieldReader region;
  while (!fields.done()) {
    if (!tags.Next(fields, &tag)) return false;
    switch (tag) {
      case VarintTag(v1::Output::kKindFieldNumber):
        if (!fields.Varint(v1::OutputKind_MAX, &value)) return false;
        output->set_kind(static_cast<v1::OutputKind>(value));
        break;
      case VarintTag(v1::Output::kDtypeFieldNumber):
        if (!fields.Varint(v1::DType_MAX, &value)) return false;
        output->set_dtype(static_cast<v1::DType>(value));
        break;
      case BytesTag(v1::Output::kRegionFieldNumber):
        if (!fields.Message(&region) || !ReadRegion(region, output->mutable_region())) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

bool ReadSegment(FieldReader fields, v1::Segment* segment) {
  Tags tags;
  uint32_t tag = 0;
  uint64_t value = 0;
  while (!fields.done()) {
    if (!tags.Next(fields, &tag)) return false;
    switch (tag) {
      case Fixed64Tag(v1::Segment::kSequenceIdFieldNumber):
        if (!fields.Fixed64(&value)) return false;
        segment->set_sequence_id(value);
        break;
      case VarintTag(v1::Segment::kNumTokensFieldNumber):
        if (!fields.Varint(kUint32Max, &value)) return false;
        segment->set_num_tokens(static_cast<uint32_t>(value));
        break;
      case VarintTag(v1::Segment::kFreshFieldNumber):
        if (!fields.Varint(1, &value)) return false;
        segment->set_fresh(value != 0);
        break;
      case VarintTag(v1::Segment::kPositionFieldNumber):
        if (!fields.Varint(&value)) return false;
        segment->set_position(value);
        break;
      default:
        return false;
    }
  }
  return true;
}

// The first segment's tag is read already; those of the others follow.
bool ReadSegments(FieldReader& fields, uint64_t limit, google::protobuf::RepeatedPtrField<v1::Segment>* segments) {
  FieldReader ahead = fields, segment;
  uint64_t count = 0;
  do {
    if (++count > limit || !ahead.Message(&segment)) return false;
  } while (!ahead.done() && *ahead.at() == kSegmentsTag && ahead.Skip(1));
  segments->Reserve(static_cast<int>(count));
  for (uint64_t i = 0; i < count; ++i) {
    if (i > 0) fields.Skip(1);
    if (!fields.Message(&segment) || !ReadSegment(segment, segments->Add())) return false;
  }
  return true;
}

// By their last bytes. Counts of a block fit in a byte, of which the compiler adds many at a time.
size_t CountVarints(const uint8_t* at, const uint8_t* end) {
  constexpr ptrdiff_t kBlock = 128;
  const auto is_last = [](uint8_t byte) { return byte < 0x80; };
  size_t count = 0;
  for (; end - at >= kBlock; at += kBlock) {
    uint8_t of_block = 0;
    for (ptrdiff_t i = 0; i < kBlock; ++i) of_block = static_cast<uint8_t>(of_block + is_last(at[i]));
    count += of_block;
  }
  return count + static_cast<size_t>(std::count_if(at, end, is_last));
}

// Token ids are mostly of three bytes.
bool ReadTokenIds(FieldReader values, google::protobuf::RepeatedField<uint32_t>* ids) {
  const uint8_t* at = values.at();
  const uint8_t* const end = at + values.bytes();
  const auto count = static_cast<int>(CountVarints(at, end));
  if (count == 0) return values.done();
  ids->Reserve(ids->size() + count);
  uint32_t* out = ids->AddNAlreadyReserved(count);
  while (at != end) {
    static_assert(std::endian::native == std::endian::little);
    uint32_t word = 0x808080;  // as if longer, at the end
    if (end - at >= 4) std::memcpy(&word, at, sizeof(word));
    if ((word & 0x808080) == 0x008080) {
      *out++ = (word & 0x7f) | (word >> 1 & 0x3f80) | (word >> 2 & 0x1fc000);
      at += 3;
    } else if ((word & 0x8080) == 0x0080) {
      *out++ = (word & 0x7f) | (word >> 1 & 0x3f80);
      at += 2;
    } else if ((word & 0x80) == 0) {
      *out++ = word & 0x7f;
      ++at;
    } else {
      FieldReader one(at, end);
      uint64_t value = 0;
      if (!one.Varint(kUint32Max, &value)) return false;
      *out++ = static_cast<uint32_t>(value);
      at = one.at();
    }
  }
  return true;
}

bool ReadReleases(FieldReader values, google::protobuf::RepeatedField<uint64_t>* ids) {
  static_assert(std::endian::native == std::endian::little);
  if (values.bytes() % sizeof(uint64_t) != 0) return false;
  const int count = static_cast<int>(values.bytes() / sizeof(uint64_t));
  if (count == 0) return true;
  ids->Reserve(ids->size() + count);
  std::memcpy(ids->AddNAlreadyReserved(count), values.at(), values.bytes());
  return true;
}

// Reads a message of which the front is in one piece.
class FrontReader {
 public:
  FrontReader(absl::Span<const uint8_t> front, uint64_t message_bytes, const ForwardRequestLimits& limits)
      : front_(front), message_bytes_(message_bytes), limits_(limits) {}

  bool Read(ForwardRequest* message) {
    message->Clear();
    FieldReader fields(front_.data(), front_.data() + front_.size());
    Tags tags;
    uint32_t tag = 0;
    while (!fields.done()) {
      if (!tags.Next(fields, &tag) || !ReadField(tag, fields, message)) return false;
      if (data_) return true;
    }
    return Offset(fields) == message_bytes_;
  }

  // Where the tensor's data begin, which reach to the message's end.
  std::optional<uint64_t> data() const { return data_; }

 private:
  uint64_t Offset(const FieldReader& fields) const { return static_cast<uint64_t>(fields.at() - front_.data()); }

  bool ReadField(uint32_t tag, FieldReader& fields, ForwardRequest* message) {
    uint64_t value = 0;
    FieldReader inner;
    switch (tag) {
      case VarintTag(ForwardRequest::kRequestIdFieldNumber):
        if (!fields.Varint(&value)) return false;
        message->set_request_id(value);
        return true;
      case VarintTag(ForwardRequest::kEpochFieldNumber):
        if (!fields.Varint(&value)) return false;
        message->set_epoch(value);
        return true;
      case VarintTag(ForwardRequest::kModeFieldNumber):
        if (!fields.Varint(v1::Mode_MAX, &value)) return false;
        message->set_mode(static_cast<v1::Mode>(value));
        return true;
      case VarintTag(ForwardRequest::kLayerIndexFieldNumber):
        if (!fields.Varint(kUint32Max, &value)) return false;
        message->set_layer_index(static_cast<uint32_t>(value));
        return true;
      case kSegmentsTag:
        return ReadSegments(fields, limits_.segments, message->mutable_segments());
      case BytesTag(ForwardRequest::kTokenIdsFieldNumber):
        return fields.Message(&inner) && ReadTokenIds(inner, message->mutable_token_ids());
      case BytesTag(ForwardRequest::kOutputFieldNumber):
        return fields.Message(&inner) && ReadOutput(inner, message->mutable_output());
      case VarintTag(ForwardRequest::kTimeoutMsFieldNumber):
        if (!fields.Varint(kUint32Max, &value)) return false;
        message->set_timeout_ms(static_cast<uint32_t>(value));
        return true;
      case BytesTag(ForwardRequest::kReleaseAfterFieldNumber):
        return fields.Message(&inner) && ReadReleases(inner, message->mutable_release_after());
      case BytesTag(ForwardRequest::kTokenRegionFieldNumber):
        return fields.Message(&inner) && ReadRegion(inner, message->mutable_token_region());
      case BytesTag(ForwardRequest::kHighwayFieldNumber):
        return ReadHighway(fields, message->mutable_highway());
      default:
        return false;
    }
  }

  bool ReadHighway(FieldReader& fields, v1::Tensor* tensor) {
    uint64_t length = 0;
    if (!fields.Length(&length)) return false;
    const uint64_t end = Offset(fields) + length;
    const bool in_front = length <= fields.bytes();
    if (!in_front && end != message_bytes_) return false;
    FieldReader inner(fields.at(), fields.at() + (in_front ? length : fields.bytes()));
    Tags tags;
    uint32_t tag = 0;
    uint64_t value = 0;
    FieldReader region;
    while (!inner.done()) {
      if (!tags.Next(inner, &tag)) return false;
      const bool is_source = tag != VarintTag(v1::Tensor::kDtypeFieldNumber);
      if (is_source && tensor->source_case() != v1::Tensor::SOURCE_NOT_SET) return false;
      switch (tag) {
        case VarintTag(v1::Tensor::kDtypeFieldNumber):
          if (!inner.Varint(v1::DType_MAX, &value)) return false;
          tensor->set_dtype(static_cast<v1::DType>(value));
          break;
        case VarintTag(v1::Tensor::kZerosFieldNumber):
          if (!inner.Varint(1, &value)) return false;
          tensor->set_zeros(value != 0);
          break;
        case BytesTag(v1::Tensor::kRegionFieldNumber):
          if (!inner.Message(&region) || !ReadRegion(region, tensor->mutable_region())) return false;
          break;
        case BytesTag(v1::Tensor::kDataFieldNumber):
          if (!inner.Length(&value) || end != message_bytes_ || Offset(inner) + value != end) return false;
          tensor->mutable_data();
          data_ = Offset(inner);
          return true;
        default:
          return false;
      }
    }
    return in_front && fields.Skip(length);
  }

  const absl::Span<const uint8_t> front_;
  const uint64_t message_bytes_;
  const ForwardRequestLimits& limits_;
  std::optional<uint64_t> data_;
};

TensorBytes BytesFrom(uint64_t offset, absl::Span<const grpc::Slice> slices) {
  std::vector<TensorBytes::Range> ranges;
  ranges.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const uint64_t skipped = std::min<uint64_t>(offset, slices[i].size());
    offset -= skipped;
    if (skipped < slices[i].size()) ranges.push_back({i, skipped, slices[i].size() - skipped});
  }
  return TensorBytes(slices, ranges);
}

}  // namespace

bool ReadPlainRequest(absl::Span<const grpc::Slice> slices, const ForwardRequestLimits& limits, ForwardRequest* message,
                      TensorBytes* tensor) {
  *tensor = TensorBytes();
  uint64_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += slice.size();
  if (bytes > std::numeric_limits<int>::max()) return false;
  // All but the data are within the limit.
  const auto read = [&](const uint8_t* front, uint64_t front_bytes) {
    FrontReader reader({front, std::min(front_bytes, limits.bytes)}, bytes, limits);
    if (!reader.Read(message)) return false;
    if (reader.data()) *tensor = BytesFrom(*reader.data(), slices);
    return true;
  };
  if (slices.empty()) return read(nullptr, 0);
  if (read(slices[0].begin(), slices[0].size())) return true;
  if (slices.size() == 1 || slices[0].size() >= kMostCopied) return false;
  const size_t copied = std::min<size_t>(bytes, kMostCopied);
  const std::unique_ptr<uint8_t[]> front(new uint8_t[copied]);
  size_t at = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t part = std::min(slice.size(), copied - at);
    if (part > 0) std::memcpy(front.get() + at, slice.begin(), part);
    at += part;
  }
  return read(front.get(), copied);
}

}  // namespace pleiad
