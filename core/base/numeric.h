// Storage formats of rows, weights and tensors, and the conversions between them. Every path that turns
// BF16 or E4M3 into numbers on the host goes through here.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pleiad {

enum class DType : uint8_t { kF32, kBf16, kF8E4M3, kI64 };

constexpr size_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kF8E4M3:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

// The name safetensors uses: "F32", "BF16", "F8_E4M3", "I64".
constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

// BF16 bits, as stored.
using Bf16 = uint16_t;

constexpr float Bf16ToFloat(Bf16 bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even. NaN stays NaN.
constexpr Bf16 FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Rows as files hold them, [count] FP32 little-endian of any alignment, each value rounded once to nearest even.
inline void RoundToBf16(const std::byte* f32, size_t count, std::byte* bf16) {
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, f32 + i * sizeof(float), sizeof(value));
    const Bf16 rounded = FloatToBf16(value);
    std::memcpy(bf16 + i * sizeof(Bf16), &rounded, sizeof(rounded));
  }
}

// E4M3 (FN): no infinities, S.1111.111 is NaN, subnormals are mantissa * 2^-9.
constexpr float F8E4M3ToFloat(uint8_t code) {
  const float sign = (code & 0x80) ? -1.0f : 1.0f;
  const int exponent = (code >> 3) & 0xF;
  const int mantissa = code & 0x7;
  if (exponent == 0xF && mantissa == 0x7) return std::bit_cast<float>(0x7FC00000u | (uint32_t{code & 0x80u} << 24));
  if (exponent == 0) return sign * (static_cast<float>(mantissa) * 0x1p-9f);
  return sign * std::bit_cast<float>(static_cast<uint32_t>((exponent + 120) << 23 | mantissa << 20));
}

// One rounding from a double, to nearest, ties to even.
constexpr Bf16 DoubleToBf16(double value) {
  float near = static_cast<float>(value);
  // Rounded to odd instead, so that the second step sees on which side of a tie the value lies.
  const double back = near;
  if (back != value && back - back == 0) {
    uint32_t bits = std::bit_cast<uint32_t>(near);
    if ((back > value) == (value > 0)) --bits;
    near = std::bit_cast<float>(bits | 1u);
  }
  return FloatToBf16(near);
}

// bf16(e4m3 * scale) for all 256 codes: one rounding (the product of 4 and 24 bits is exact in a double).
constexpr std::array<Bf16, 256> F8DecodeTable(float scale) {
  std::array<Bf16, 256> table{};
  for (int code = 0; code < 256; ++code) {
    table[static_cast<size_t>(code)] =
        DoubleToBf16(static_cast<double>(F8E4M3ToFloat(static_cast<uint8_t>(code))) * static_cast<double>(scale));
  }
  return table;
}

}  // namespace pleiad
