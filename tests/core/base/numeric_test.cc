#include "core/base/numeric.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace pleiad {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

// E4M3 by the definition of the format, in other arithmetic than the decoder's.
float TableE4M3(int code) {
  const int exponent = (code / 8) % 16;
  const int mantissa = code % 8;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(code < 128 ? size : -size);
}

// The nearest BF16 of |value| found by search among all of them; 2^128 stands for infinity.
Bf16 NearestBf16(double value) {
  if (std::isnan(value)) return 0x7FC0;
  const double size = std::abs(value);
  const auto at = [](uint32_t code) { return code == 0x7F80 ? 0x1p128 : double{Bf16ToFloat(static_cast<Bf16>(code))}; };
  uint32_t low = 0;
  uint32_t high = 0x7F80;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (at(middle) <= size ? low : high) = middle;
  }
  const double below = size - at(low);
  const double above = at(high) - size;
  const uint32_t code = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<Bf16>(code | (std::signbit(value) ? 0x8000u : 0u));
}

bool SameBf16(Bf16 a, Bf16 b) {
  const bool both_nan = std::isnan(Bf16ToFloat(a)) && std::isnan(Bf16ToFloat(b));
  return both_nan || a == b;
}

TEST(NumericTest, B06_All256E4M3CodesDecodeAsTheFormatDefinesThem) {
  for (int code = 0; code < 256; ++code) {
    const float decoded = F8E4M3ToFloat(static_cast<uint8_t>(code));
    const float expected = TableE4M3(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
    } else {
      EXPECT_EQ(Bits(decoded), Bits(expected)) << code;
    }
  }
  EXPECT_EQ(Bits(F8E4M3ToFloat(0x00)), 0x00000000u);
  EXPECT_EQ(Bits(F8E4M3ToFloat(0x80)), 0x80000000u);
  EXPECT_EQ(F8E4M3ToFloat(0x01), 0.001953125f);
  EXPECT_EQ(F8E4M3ToFloat(0x07), 0.013671875f);
  EXPECT_EQ(F8E4M3ToFloat(0x08), 0.015625f);
  EXPECT_EQ(F8E4M3ToFloat(0x7E), 448.0f);
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0x7F)));
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0xFF)));
}

TEST(NumericTest, B06_ADecoderWithoutSubnormalsAndNanIsToldApart) {
  int wrong = 0;
  for (int code = 0; code < 256; ++code) {
    const double size = std::ldexp(8 + code % 8, (code / 8) % 16 - 10);
    wrong += Bits(static_cast<float>(code < 128 ? size : -size)) != Bits(F8E4M3ToFloat(static_cast<uint8_t>(code)));
  }
  EXPECT_EQ(wrong, 18);
}

TEST(NumericTest, B06_NanCodesStayNanUnderAnyScale) {
  for (const float scale : {0.5f, -1.0f, 1e30f}) {
    const auto table = F8DecodeTable(scale);
    EXPECT_TRUE(std::isnan(Bf16ToFloat(table[0x7F])));
    EXPECT_TRUE(std::isnan(Bf16ToFloat(table[0xFF])));
    EXPECT_FALSE(std::isnan(Bf16ToFloat(table[0x7E])));
  }
}

TEST(NumericTest, B07_AScaleOfOneHalfHalvesEveryCode) {
  const auto table = F8DecodeTable(0.5f);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    EXPECT_EQ(Bits(Bf16ToFloat(table[static_cast<size_t>(code)])), Bits(TableE4M3(code) / 2)) << code;
  }
}

TEST(NumericTest, ScaledRowsAreRoundedOnce) {
  std::mt19937 random(1);
  int twice_differs = 0;
  for (int round = 0; round < 2000; ++round) {
    // Scales near a BF16 tie with one low bit: there a rounding to FP32 in between changes the result.
    const auto high = static_cast<uint32_t>((random() & 0x3F) | 0x3E80u);
    const float scale = std::bit_cast<float>(
        high << 16 | static_cast<uint32_t>(round % 2 ? 0x8000u | (random() & 3) : random() & 0xFFFF));
    const auto table = F8DecodeTable(scale);
    for (int code = 0; code < 256; ++code) {
      const Bf16 expected = NearestBf16(double{TableE4M3(code)} * double{scale});
      ASSERT_TRUE(SameBf16(table[static_cast<size_t>(code)], expected)) << "code " << code << " scale " << scale;
      twice_differs += !SameBf16(FloatToBf16(TableE4M3(code) * scale), expected);
    }
  }
  EXPECT_GT(twice_differs, 0) << "the scales do not tell one rounding from two";
}

TEST(NumericTest, EveryBf16SurvivesTheWayThroughFloat) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<Bf16>(code);
    EXPECT_TRUE(SameBf16(FloatToBf16(Bf16ToFloat(bits)), bits)) << code;
  }
}

TEST(NumericTest, FloatsRoundToTheNearestBf16WithTiesToEven) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    // The tie above each BF16 and its two neighbours.
    for (const uint32_t low : {0x7FFFu, 0x8000u, 0x8001u}) {
      const float value = std::bit_cast<float>(code << 16 | low);
      if (!std::isnan(value)) {
        ASSERT_TRUE(SameBf16(FloatToBf16(value), NearestBf16(value))) << std::hex << Bits(value);
      }
    }
  }
  std::mt19937 random(2);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_TRUE(SameBf16(FloatToBf16(value), NearestBf16(value))) << std::hex << Bits(value);
  }
}

TEST(NumericTest, Bf16KeepsNanInfinityAndOverflow) {
  for (const uint32_t nan : {0x7F800001u, 0x7F80FFFFu, 0x7FFFFFFFu, 0xFF800001u, 0x7FC00000u}) {
    EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(nan))))) << std::hex << nan;
    EXPECT_EQ(FloatToBf16(std::bit_cast<float>(nan)) >> 15, nan >> 31);
  }
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::infinity()), 0x7F80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(FloatToBf16(-0.0f), 0x8000);
}

TEST(NumericTest, DoublesRoundOnceOverTheWholeRangeOfBf16) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200000; ++i) {
    // All signs and mantissas, exponents from below BF16's subnormals to past its largest number.
    const uint64_t bits = random();
    const uint64_t exponent = 1023 - 140 + (bits >> 52) % 270;
    const double value = std::bit_cast<double>((bits & 0x800FFFFFFFFFFFFFu) | exponent << 52);
    ASSERT_TRUE(SameBf16(DoubleToBf16(value), NearestBf16(value))) << value;
    // Just beside a tie, closer than a float can tell.
    const double tie = (double{Bf16ToFloat(static_cast<Bf16>(bits & 0x7EFF))} +
                        double{Bf16ToFloat(static_cast<Bf16>((bits & 0x7EFF) + 1))}) /
                       2;
    for (const double near : {std::nextafter(tie, 0.0), tie, std::nextafter(tie, 1e300)}) {
      ASSERT_TRUE(SameBf16(DoubleToBf16(near), NearestBf16(near))) << near;
    }
  }
}

}  // namespace
}  // namespace pleiad
