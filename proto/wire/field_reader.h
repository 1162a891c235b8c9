// Fields of the wire format, front to back, for readers of messages of few shapes: a false of any call stands for all
// that is left to the generated classes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pleiad {

// The bytes outlive it.
class FieldReader {
 public:
  FieldReader() = default;
  FieldReader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  bool done() const { return at_ == end_; }
  const uint8_t* at() const { return at_; }
  size_t bytes() const { return static_cast<size_t>(end_ - at_); }

  // Of a tag of one byte: numbers below 16.
  bool Tag(uint32_t* number, uint32_t* wire_type) {
    if (done() || *at_ >= 0x80) return false;
    *number = *at_ >> 3;
    *wire_type = *at_++ & 7;
    return true;
  }
  // Of at most 64 bits.
  bool Varint(uint64_t* value) {
    if (at_ != end_ && *at_ < 0x80) {
      *value = *at_++;
      return true;
    }
    return LongVarint(value);
  }
  // Not above `max`.
  bool Varint(uint64_t max, uint64_t* value) { return Varint(value) && *value <= max; }
  bool Fixed64(uint64_t* value) {
    static_assert(std::endian::native == std::endian::little);
    if (bytes() < sizeof(*value)) return false;
    std::memcpy(value, at_, sizeof(*value));
    at_ += sizeof(*value);
    return true;
  }
  bool Skip(uint64_t count) {
    if (count > bytes()) return false;
    at_ += count;
    return true;
  }
  // Of what follows, which may reach beyond the end. Protobuf takes at most 5 bytes.
  bool Length(uint64_t* length) {
    const uint8_t* const begin = at_;
    return Varint(length) && at_ - begin <= 5;
  }
  // The fields of a message within, or the values of a packed field.
  bool Message(FieldReader* message) {
    uint64_t length = 0;
    if (!Length(&length) || length > bytes()) return false;
    *message = FieldReader(at_, at_ + length);
    at_ += length;
    return true;
  }

 private:
  bool LongVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const uint8_t byte = *at_++;
      if (shift == 63 && byte > 1) return false;
      *value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
};

}  // namespace pleiad
