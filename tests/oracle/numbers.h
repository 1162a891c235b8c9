// BF16 and E4M3 by arithmetic on values, unlike the bit operations of the product.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace pleiad::oracle {

// Value of BF16 bits: sign, 8 exponent bits, 7 mantissa bits.
inline double Bf16Value(uint16_t bits) {
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  const int exponent = (bits >> 7) & 0xFF;
  const int mantissa = bits & 0x7F;
  if (exponent == 255) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(128 + mantissa, exponent - 134);
}

// The nearest BF16 value, ties to even mantissa. Overflow goes to infinity.
inline double RoundToBf16(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  std::frexp(value, &exponent);
  const int unit = std::fmax(exponent - 8, -133);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::fabs(rounded) >= std::ldexp(1, 128) ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                                  : rounded;
}

// Bits of a value that is a BF16 value.
inline uint16_t Bf16Bits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7FC0;
  if (std::isinf(value)) return static_cast<uint16_t>(sign | 0x7F80);
  if (value == 0) return sign;
  int exponent;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  if (exponent < -125) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(std::fabs(value), 133)));
  const int mantissa = static_cast<int>(std::ldexp(fraction, 8)) - 128;
  return static_cast<uint16_t>(sign | ((exponent + 126) << 7) | mantissa);
}

// Value of an E4M3 (FN) code: bias 7, no infinities, S.1111.111 is NaN.
inline double E4m3Value(uint8_t code) {
  const double sign = code >= 128 ? -1.0 : 1.0;
  const int magnitude = code % 128;
  if (magnitude == 127) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude / 8;
  const int mantissa = magnitude % 8;
  return exponent == 0 ? sign * std::ldexp(mantissa, -9) : sign * std::ldexp(8 + mantissa, exponent - 10);
}

}  // namespace pleiad::oracle
