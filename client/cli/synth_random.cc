#include "client/cli/synth_random.h"

#include <cstring>

namespace pleiad {
namespace {

uint64_t SplitMix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

struct Lanes {
  uint64_t random;  // bits taken from the random word
  uint64_t base;    // added to them, lane by lane without carry
};

// Sign, mantissa and two exponent bits are random; the base exponent is 119, so exponents are 119 to 122. E4M3
// takes three exponent bits and never the fourth, without which no code is NaN.
Lanes LanesOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return {.random = 0x81FF81FF81FF81FFull, .base = 0x3B803B803B803B80ull};
    case DType::kF8E4M3:
      return {.random = 0xBFBFBFBFBFBFBFBFull, .base = 0};
    default:
      return {.random = 0x81FFFFFF81FFFFFFull, .base = 0x3B8000003B800000ull};
  }
}

}  // namespace

void FillRandomRows(DType dtype, uint64_t seed, uint64_t first_word, absl::Span<std::byte> bytes) {
  const Lanes lanes = LanesOf(dtype);
  const uint64_t start = SplitMix64(seed) + first_word;
  const size_t words = bytes.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = (SplitMix64(start + i) & lanes.random) + lanes.base;
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
}

void FillUniformBf16(float limit, uint64_t seed, uint64_t first, absl::Span<Bf16> values) {
  const uint64_t start = SplitMix64(seed) + first;
  for (size_t i = 0; i < values.size(); ++i) {
    const float unit = static_cast<float>(SplitMix64(start + i) >> 40) * 0x1p-23f - 1.0f;
    values[i] = FloatToBf16(unit * limit);
  }
}

}  // namespace pleiad
