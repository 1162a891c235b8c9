#include "proto/wire/bounded_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "grpcpp/support/proto_buffer_reader.h"

namespace pleiad {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

class PartCounter {
 public:
  PartCounter(CodedInputStream* input, uint64_t limit) : input_(input), limit_(limit) {}

  // Whether there are at most so many parts, as far as the bytes can be read: what cannot is the parser's to refuse.
  // `type` null: of an unknown group.
  bool Fits(const Descriptor* type) {
    while (const uint32_t tag = input_->ReadTag()) {
      const auto wire_type = WireFormatLite::GetTagWireType(tag);
      if (wire_type == WireFormatLite::WIRETYPE_END_GROUP) return true;
      const FieldDescriptor* field =
          type == nullptr ? nullptr : type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const bool group = wire_type == WireFormatLite::WIRETYPE_START_GROUP;
      const bool known = field != nullptr && IsOf(*field, wire_type);
      const bool submessage = known && field->type() == FieldDescriptor::TYPE_MESSAGE;
      const bool string = known && field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      if ((!known || submessage || string) && ++parts_ > limit_) return false;
      if (submessage || group) {
        if (!FitsWithin(submessage ? field->message_type() : nullptr, group)) return parts_ <= limit_;
      } else if (!WireFormatLite::SkipField(input_, tag)) {
        return true;
      }
    }
    return true;
  }

 private:
  static bool IsOf(const FieldDescriptor& field, WireFormatLite::WireType wire_type) {
    if (field.is_packable() && wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return true;
    return wire_type == WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
  }

  static constexpr int kMaxDepth = 100;  // protobuf's own

  // False: too many, or no more can be read.
  bool FitsWithin(const Descriptor* type, bool group) {
    if (depth_ == kMaxDepth) return false;
    ++depth_;
    bool fits = true;
    if (group) {
      fits = Fits(nullptr);
    } else {
      uint32_t bytes = 0;
      if (!input_->ReadVarint32(&bytes) || bytes > static_cast<uint32_t>(INT32_MAX)) return false;
      const auto limit = input_->PushLimit(static_cast<int>(bytes));
      fits = Fits(type);
      fits = fits && input_->BytesUntilLimit() == 0;
      input_->PopLimit(limit);
    }
    --depth_;
    return fits;
  }

  CodedInputStream* const input_;
  const uint64_t limit_;
  uint64_t parts_ = 0;
  int depth_ = 0;
};

}  // namespace

BoundedParse ParseBounded(const grpc::ByteBuffer& buffer, const MessageLimits& limits,
                          google::protobuf::Message* message) {
  if (!buffer.Valid()) return BoundedParse::kMalformed;
  if (buffer.Length() > limits.bytes) return BoundedParse::kTooLarge;
  grpc::ByteBuffer copy = buffer;
  {
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok()) return BoundedParse::kMalformed;
    CodedInputStream input(&reader);
    if (!PartCounter(&input, limits.parts).Fits(message->GetDescriptor())) return BoundedParse::kTooLarge;
  }
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) return BoundedParse::kMalformed;
  return BoundedParse::kWhole;
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace pleiad
