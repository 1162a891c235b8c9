#include "proto/wire/forward_message.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string>
#include <utility>

#include "grpcpp/support/slice.h"
#include "proto/wire/field_writer.h"
#include "proto/wire/plain_request.h"

namespace pleiad {
namespace {

// The tensor is the last known field of both messages, and `data` the last of the tensor.
constexpr uint32_t kTensorField = 15;
static_assert(v1::ForwardRequest::kHighwayFieldNumber == kTensorField);
static_assert(v1::ForwardResponse::kOutputFieldNumber == kTensorField);
static_assert(v1::Tensor::kDataFieldNumber == kTensorField);
static_assert(v1::Tensor::kDtypeFieldNumber == 1);

constexpr uint8_t kLengthDelimited = 2;
constexpr char kTensorTag = static_cast<char>(kTensorField << 3 | kLengthDelimited);
constexpr char kDTypeTag = 1 << 3;
constexpr uint32_t kRequestIdTag = v1::ForwardRequest::kRequestIdFieldNumber << 3;
constexpr int kTagBytes = 5;
constexpr int kLengthBytes = 5;
constexpr int kVarintBytes = 10;
// What a message of few segments and tokens has beside its tensor.
constexpr size_t kUsualRest = 256;
// And one of many segments.
constexpr size_t kManyRest = 4 << 10;
// Of a token's highway.
constexpr size_t kUsualSlices = 16;

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Reads a message once, front to back, and sorts its bytes: those of tensors' `data` are remembered where they lie, the
// rest is copied to a shorter message in which every `data` is empty. Protobuf reads that one, so all rules of merging
// and of malformed bytes are its own; here a field is only followed to its end.
class TensorCutter {
 public:
  TensorCutter(absl::Span<const grpc::Slice> slices, const ForwardRequestLimits& limits)
      : slices_(slices), limits_(limits) {}

  // False: cut off, or not the wire format.
  bool Cut(uint64_t size, std::string* rest) { return CutFields(size, Level::kMessage, rest); }

  // Of a request: all fields beyond the limits are left out, but for its id.
  bool too_large() const { return too_large_; }

  // Of the last `data`.
  absl::Span<const TensorBytes::Range> data() const { return data_; }

 private:
  enum class Level : uint8_t { kMessage, kTensor };

  // Goes over the next `bytes`, which are there, and gives them to `take` as ranges.
  template <typename Take>
  void Advance(uint64_t bytes, Take take) {
    position_ += bytes;
    while (bytes > 0) {
      const size_t here = static_cast<size_t>(std::min<uint64_t>(bytes, slices_[slice_].size() - at_));
      if (here > 0) take(TensorBytes::Range{slice_, at_, here});
      at_ += here;
      bytes -= here;
      if (at_ == slices_[slice_].size() && bytes > 0) {
        ++slice_;
        at_ = 0;
      }
    }
  }

  bool Copy(uint64_t end, uint64_t bytes, std::string* rest) {
    if (bytes > end - position_) return false;
    Count(bytes);
    if (too_large_) {
      Advance(bytes, [](const TensorBytes::Range&) {});
      return true;
    }
    Advance(bytes, [&](const TensorBytes::Range& range) {
      rest->append(reinterpret_cast<const char*>(slices_[range.slice].begin()) + range.offset, range.bytes);
    });
    return true;
  }

  void Count(uint64_t bytes) {
    copied_ += bytes;
    too_large_ = too_large_ || copied_ > limits_.bytes;
  }

  bool CopyVarint(uint64_t end, int max_bytes, std::string* rest, uint64_t* value) {
    *value = 0;
    // Mostly all of it is there, in one byte.
    if (position_ != end && at_ != slices_[slice_].size() && slices_[slice_].begin()[at_] < 0x80) {
      *value = slices_[slice_].begin()[at_++];
      ++position_;
      Count(1);
      rest->push_back(static_cast<char>(*value));
      return true;
    }
    for (int i = 0; i < max_bytes; ++i) {
      if (position_ == end) return false;
      while (at_ == slices_[slice_].size()) {
        ++slice_;
        at_ = 0;
      }
      const uint8_t byte = slices_[slice_].begin()[at_++];
      ++position_;
      Count(1);
      rest->push_back(static_cast<char>(byte));
      *value |= uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool CutFields(uint64_t end, Level level, std::string* rest) {
    size_t groups = 0;  // open ones; they are unknown, and all in them
    while (position_ < end) {
      const size_t mark = rest->size();
      uint64_t value = 0;
      if (!CopyVarint(end, kTagBytes, rest, &value)) return false;
      const auto tag = static_cast<uint32_t>(value);
      const uint32_t number = tag >> 3;
      if (number == 0) return false;
      switch (tag & 7) {
        case 0:
          if (!CopyVarint(end, kVarintBytes, rest, &value)) return false;
          break;
        case 1:
          if (!Copy(end, 8, rest)) return false;
          break;
        case kLengthDelimited: {
          if (!CopyVarint(end, kLengthBytes, rest, &value) || value > end - position_) return false;
          if (groups > 0 || number < kTensorField) {
            if (level == Level::kMessage && groups == 0 && number == v1::ForwardRequest::kSegmentsFieldNumber) {
              too_large_ = too_large_ || ++segments_ > limits_.segments;
            }
            Copy(end, value, rest);
            break;
          }
          rest->resize(mark);
          if (number == kTensorField && !CutTensorField(value, level, rest)) return false;
          if (number > kTensorField) Advance(value, [](const TensorBytes::Range&) {});
          break;
        }
        case 3:
          ++groups;
          break;
        case 4:
          if (groups-- == 0) return false;
          break;
        case 5:
          if (!Copy(end, 4, rest)) return false;
          break;
        default:
          return false;
      }
      if (!too_large_) continue;
      if (groups > 0) return false;
      if (level != Level::kMessage || tag != kRequestIdTag) rest->resize(mark);
    }
    return groups == 0;
  }

  // The tensor of a message or the data of a tensor.
  bool CutTensorField(uint64_t bytes, Level level, std::string* rest) {
    std::string tensor;
    if (level == Level::kMessage) {
      if (!CutFields(position_ + bytes, Level::kTensor, &tensor)) return false;
    } else {
      data_.clear();
      Advance(bytes, [this](const TensorBytes::Range& range) { data_.push_back(range); });
    }
    rest->push_back(kTensorTag);
    AppendVarint(tensor.size(), rest);
    rest->append(tensor);
    return true;
  }

  const absl::Span<const grpc::Slice> slices_;
  const ForwardRequestLimits limits_;
  uint64_t copied_ = 0;
  uint64_t segments_ = 0;
  bool too_large_ = false;
  uint64_t position_ = 0;
  size_t slice_ = 0;
  size_t at_ = 0;  // within the slice
  std::vector<TensorBytes::Range> data_;
};

const v1::Tensor& TensorOf(const v1::ForwardRequest& message) { return message.highway(); }
const v1::Tensor& TensorOf(const v1::ForwardResponse& message) { return message.output(); }

// False: gRPC cannot say them.
bool SlicesOf(const grpc::ByteBuffer& buffer, std::vector<grpc::Slice>* slices) {
  slices->reserve(kUsualSlices);
  return !buffer.Valid() || buffer.Dump(slices).ok();
}

template <typename Message>
ForwardRequestParse ParseAny(absl::Span<const grpc::Slice> slices, const ForwardRequestLimits& limits, Message* message,
                             TensorBytes* tensor) {
  *tensor = TensorBytes();
  uint64_t size = 0;
  for (const grpc::Slice& slice : slices) size += slice.size();
  if (size > INT_MAX) return ForwardRequestParse::kMalformed;
  TensorCutter cutter(slices, limits);
  std::string rest;
  rest.reserve(std::clamp<size_t>(size, kUsualRest, kManyRest));
  if (!cutter.Cut(size, &rest) || !message->ParseFromString(rest)) return ForwardRequestParse::kMalformed;
  if (cutter.too_large()) return ForwardRequestParse::kTooLarge;
  if (TensorOf(*message).source_case() == v1::Tensor::kData) *tensor = TensorBytes(slices, cutter.data());
  return ForwardRequestParse::kWhole;
}

template <typename Message>
bool Parse(grpc::ByteBuffer* buffer, Message* message, TensorBytes* tensor) {
  grpc::ByteBuffer taken;
  taken.Swap(buffer);
  std::vector<grpc::Slice> slices;
  return SlicesOf(taken, &slices) && ParseAny(slices, {}, message, tensor) == ForwardRequestParse::kWhole;
}

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message, v1::DType dtype, absl::Span<const grpc::Slice> data) {
  uint64_t bytes = 0;
  for (const grpc::Slice& slice : data) bytes += slice.size();
  const auto type = static_cast<uint64_t>(int64_t{dtype});
  const size_t type_size = dtype == v1::DTYPE_UNSPECIFIED ? 0 : 1 + VarintSize(type);
  const uint64_t tensor_size = type_size + 1 + VarintSize(bytes) + bytes;
  const size_t rest = message.ByteSizeLong();
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + data.size());
  grpc::Slice& head = slices.emplace_back(rest + 1 + VarintSize(tensor_size) + (tensor_size - bytes));
  uint8_t* out = message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(head.begin()));
  *out++ = kTensorTag;
  out = WriteVarint(tensor_size, out);
  if (type_size > 0) {
    *out++ = kDTypeTag;
    out = WriteVarint(type, out);
  }
  *out++ = kTensorTag;
  WriteVarint(bytes, out);
  slices.insert(slices.end(), data.begin(), data.end());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

bool ParseForwardMessage(grpc::ByteBuffer* buffer, v1::ForwardRequest* message, TensorBytes* tensor) {
  return Parse(buffer, message, tensor);
}

bool ParseForwardMessage(grpc::ByteBuffer* buffer, v1::ForwardResponse* message, TensorBytes* tensor) {
  return Parse(buffer, message, tensor);
}

ForwardRequestParse ParseForwardRequest(const grpc::ByteBuffer& buffer, const ForwardRequestLimits& limits,
                                        v1::ForwardRequest* message, TensorBytes* tensor) {
  grpc::Slice only;
  std::vector<grpc::Slice> several;
  absl::Span<const grpc::Slice> slices(&only, 1);
  if (!buffer.Valid() || !buffer.TrySingleSlice(&only).ok()) {
    if (!SlicesOf(buffer, &several)) return ForwardRequestParse::kMalformed;
    slices = several;
  }
  if (ReadPlainRequest(slices, limits, message, tensor)) return ForwardRequestParse::kPlain;
  return ParseAny(slices, limits, message, tensor);
}

ForwardRequestParse ParseAnyForwardRequest(const grpc::ByteBuffer& buffer, const ForwardRequestLimits& limits,
                                           v1::ForwardRequest* message, TensorBytes* tensor) {
  std::vector<grpc::Slice> slices;
  if (!SlicesOf(buffer, &slices)) return ForwardRequestParse::kMalformed;
  return ParseAny(slices, limits, message, tensor);
}

grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardRequest& message) { return Serialize(message); }

grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardResponse& message) { return Serialize(message); }

grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardRequest& message, v1::DType dtype,
                                         absl::Span<const grpc::Slice> data) {
  return Serialize(message, dtype, data);
}

grpc::ByteBuffer SerializeForwardMessage(const v1::ForwardResponse& message, v1::DType dtype,
                                         absl::Span<const grpc::Slice> data) {
  return Serialize(message, dtype, data);
}

grpc::Slice ReferenceSlice(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  auto* kept = new std::shared_ptr<const void>(std::move(owner));
  const auto let_go = [](void* p) { delete static_cast<std::shared_ptr<const void>*>(p); };
  // gRPC only reads it.
  return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), let_go, kept);
}

}  // namespace pleiad
