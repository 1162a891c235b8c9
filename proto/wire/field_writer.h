// Fields of the wire format in the order of a template that writes them once into nothing, to learn their size, and
// once into memory. Where all fields of a message are written in the order of their numbers, and those of the default
// left out, the bytes are those of the generated classes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/numeric/bits.h"
#include "absl/types/span.h"

namespace pleiad {

// 1 to 10 bytes.
constexpr size_t VarintSize(uint64_t value) { return (static_cast<size_t>(absl::bit_width(value | 1)) * 9 + 64) / 64; }

inline size_t VarintsSize(absl::Span<const uint32_t> values) {
  size_t bytes = values.size();
  for (const uint32_t value : values) {
    bytes += (value >= 1u << 7) + (value >= 1u << 14) + (value >= 1u << 21) + (value >= 1u << 28);
  }
  return bytes;
}

inline uint8_t* WriteVarint(uint64_t value, uint8_t* out) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
  *out++ = static_cast<uint8_t>(value);
  return out;
}

// Counts what FieldWriter would write.
class FieldCounter {
 public:
  void Varint(uint64_t value) { size_ += VarintSize(value); }
  void Fixed64(uint64_t /*value*/) { size_ += 8; }
  void Varints(absl::Span<const uint32_t> /*values*/, size_t bytes) { size_ += bytes; }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

class FieldWriter {
 public:
  // There is room.
  explicit FieldWriter(uint8_t* out) : out_(out) {}
  void Varint(uint64_t value) { out_ = WriteVarint(value, out_); }
  void Fixed64(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) *out_++ = static_cast<uint8_t>(value >> (8 * byte));
  }
  // `bytes`: VarintsSize(values).
  void Varints(absl::Span<const uint32_t> values, size_t /*bytes*/) {
    for (const uint32_t value : values) out_ = WriteVarint(value, out_);
  }

 private:
  uint8_t* out_;
};

// Fields of numbers below 16, left out where the value is 0.
template <typename Out>
void PutVarint(Out& out, uint32_t number, uint64_t value) {
  if (value == 0) return;
  out.Varint(number << 3);
  out.Varint(value);
}
template <typename Out>
void PutFixed64(Out& out, uint32_t number, uint64_t value) {
  if (value == 0) return;
  out.Varint(number << 3 | 1);
  out.Fixed64(value);
}
// `put` writes the message's fields.
template <typename Out, typename Put>
void PutMessage(Out& out, uint32_t number, Put put) {
  FieldCounter counter;
  put(counter);
  out.Varint(number << 3 | 2);
  out.Varint(counter.size());
  put(out);
}

// A message's tensor with `bytes` of data, its last field, up to them. `dtype`: the number of a DType.
template <typename Out>
void PutTensorHead(Out& out, uint64_t dtype, uint64_t bytes) {
  constexpr uint32_t kTensorNumber = 15, kDTypeNumber = 1, kDataNumber = 15;
  FieldCounter head;
  PutVarint(head, kDTypeNumber, dtype);
  head.Varint(kDataNumber << 3 | 2);
  head.Varint(bytes);
  out.Varint(kTensorNumber << 3 | 2);
  out.Varint(head.size() + bytes);
  PutVarint(out, kDTypeNumber, dtype);
  out.Varint(kDataNumber << 3 | 2);
  out.Varint(bytes);
}

}  // namespace pleiad
