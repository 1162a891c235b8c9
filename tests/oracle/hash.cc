#include "tests/oracle/hash.h"

#include <algorithm>

namespace pleiad::oracle {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

uint64_t Splitmix(uint64_t v) {
  v += kGolden;
  v ^= v >> 30;
  v *= 0xBF58476D1CE4E5B9ull;
  v ^= v >> 27;
  v *= 0x94D049BB133111EBull;
  return v ^ (v >> 31);
}

bool IsPrime(uint64_t n) {
  if (n < 2) return false;
  for (uint64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

HashNumbers DeriveHash(const HashConfig& config) {
  HashNumbers numbers;
  const uint64_t bound = std::max<uint64_t>(1, 0x7FFFFFFFFFFFFFFFull / config.vocab_size / 2);
  for (uint64_t i = 0; i < config.ngram_size; ++i) {
    const uint64_t mixed = Splitmix(config.seed + 10007 * config.dense_index + kGolden * (i + 1));
    numbers.multipliers.push_back(2 * (mixed % bound) + 1);
  }
  const uint64_t heads = (config.ngram_size - 1) * config.heads_per_ngram;
  uint64_t candidate = config.base;
  for (uint64_t found = 0; numbers.sizes.size() < heads; ++candidate) {
    if (!IsPrime(candidate)) continue;
    if (found++ >= config.dense_index * heads) numbers.sizes.push_back(candidate);
  }
  for (uint64_t size : numbers.sizes) {
    numbers.offsets.push_back(numbers.usable_rows);
    numbers.usable_rows += size;
  }
  numbers.padded_rows = (numbers.usable_rows + config.divisor - 1) / config.divisor * config.divisor;
  return numbers;
}

std::vector<uint64_t> HashTokens(const HashConfig& config, const HashNumbers& numbers,
                                 const std::vector<uint32_t>& tokens) {
  std::vector<uint64_t> ids;
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<uint64_t> window = {tokens[t]};
    bool cut = false;
    for (size_t back = 1; back < config.ngram_size; ++back) {
      cut = cut || back > t || tokens[t - back] == config.eos;
      window.push_back(cut ? config.eos : tokens[t - back]);
    }
    for (size_t order = 2; order <= config.ngram_size; ++order) {
      uint64_t mixed = 0;
      for (size_t k = 0; k < order; ++k) mixed ^= window[k] * numbers.multipliers[k];
      for (size_t h = 0; h < config.heads_per_ngram; ++h) {
        const size_t head = (order - 2) * config.heads_per_ngram + h;
        ids.push_back(mixed % numbers.sizes[head] + numbers.offsets[head]);
      }
    }
  }
  return ids;
}

std::vector<uint32_t> HistoryAt(const HashConfig& config, const std::vector<uint32_t>& tokens, size_t position) {
  std::vector<uint32_t> history;
  for (size_t back = config.ngram_size - 1; back >= 1; --back) {
    history.push_back(back <= position ? tokens[position - back] : static_cast<uint32_t>(config.eos));
  }
  return history;
}

}  // namespace pleiad::oracle
