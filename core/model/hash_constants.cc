#include "core/model/hash_constants.h"

#include <algorithm>
#include <array>
#include <limits>

namespace pleiad {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;

uint64_t SplitMix64(uint64_t v) {
  v += kGamma;
  v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
  v = (v ^ v >> 27) * 0x94D049BB133111EBu;
  return v ^ v >> 31;
}

uint64_t PowMod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  Wide result = 1;
  Wide power = base % modulus;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = result * power % modulus;
    power = power * power % modulus;
  }
  return static_cast<uint64_t>(result);
}

// Miller-Rabin; these bases decide every number below 3.4e14 (Jaeschke 1993), far above any head size.
bool IsPrime(uint64_t n) {
  constexpr std::array<uint64_t, 7> kBases = {2, 3, 5, 7, 11, 13, 17};
  if (n < 2) return false;
  for (const uint64_t base : kBases) {
    if (n % base == 0) return n == base;
  }
  uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (const uint64_t base : kBases) {
    uint64_t x = PowMod(base, odd, n);
    bool witness = x != 1 && x != n - 1;
    for (int i = 1; witness && i < twos; ++i) {
      x = static_cast<uint64_t>(Wide{x} * x % n);
      witness = x != n - 1;
    }
    if (witness) return false;
  }
  return true;
}

}  // namespace

HashConstants DeriveHashConstants(const ModelConfig& config, LayerOrdinal layer) {
  HashConstants constants;
  const uint64_t p = layer.value();

  // With this bound a token id times a multiplier stays below 2^63.
  constexpr uint64_t kMaxI64 = std::numeric_limits<int64_t>::max();
  const uint64_t bound = std::max<uint64_t>(1, kMaxI64 / config.vocab_size / 2);
  for (uint64_t i = 0; i < config.geometry.ngram_size; ++i) {
    constants.multipliers.push_back(2 * (SplitMix64(config.seed + 10007 * p + kGamma * (i + 1)) % bound) + 1);
  }

  const uint64_t heads = config.geometry.heads();
  uint64_t skipped = 0;
  for (uint64_t n = config.ngram_vocab_size_base; constants.head_sizes.size() < heads; ++n) {
    if (!IsPrime(n)) continue;
    if (skipped++ < p * heads) continue;
    constants.head_offsets.push_back(constants.usable_rows);
    constants.head_sizes.push_back(n);
    constants.usable_rows += n;
  }
  const uint64_t divisor = config.ngram_vocab_divisor;
  constants.padded_rows = (constants.usable_rows + divisor - 1) / divisor * divisor;
  return constants;
}

}  // namespace pleiad
