// The n-gram hash once more, slowly: straight from the formula, and with the mistakes that must be told apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pleiad::testing {

struct HashRecipe {
  std::vector<uint64_t> multipliers;
  std::vector<uint64_t> head_sizes;
  std::vector<uint64_t> head_offsets;
  uint32_t heads_per_ngram = 0;
  uint32_t eos = 0;
};

// What stands in a window where there is no token.
struct HashMistakes {
  uint32_t start_fill = 0;  // before the start; right: eos
  uint32_t reset_fill = 0;  // at and before an EOS met walking back; right: eos
  bool no_reset = false;    // tokens before an EOS are seen
};

inline HashMistakes NoMistake(const HashRecipe& recipe) { return {recipe.eos, recipe.eos, false}; }

// Row ids [T][heads] of a fresh sequence.
inline std::vector<std::vector<uint64_t>> NaiveHash(const HashRecipe& recipe, const std::vector<uint32_t>& tokens,
                                                    const HashMistakes& mistakes) {
  std::vector<std::vector<uint64_t>> out;
  const size_t order = recipe.multipliers.size();
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<uint64_t> window;
    for (size_t k = 0; k < order; ++k) {
      uint64_t id = k <= t ? tokens[t - k] : mistakes.start_fill;
      for (size_t j = 1; j <= k && !mistakes.no_reset; ++j) {
        if (j <= t && tokens[t - j] == recipe.eos) id = mistakes.reset_fill;
      }
      window.push_back(id);
    }
    std::vector<uint64_t> ids;
    for (size_t head = 0; head < recipe.head_sizes.size(); ++head) {
      const size_t n = 2 + head / recipe.heads_per_ngram;
      uint64_t mix = 0;
      for (size_t k = 0; k < n; ++k) mix ^= window[k] * recipe.multipliers[k];
      ids.push_back(mix % recipe.head_sizes[head] + recipe.head_offsets[head]);
    }
    out.push_back(ids);
  }
  return out;
}

}  // namespace pleiad::testing
