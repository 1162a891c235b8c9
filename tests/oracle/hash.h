// The n-gram hash written from the formula.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pleiad::oracle {

struct HashConfig {
  uint64_t vocab_size = 1000;
  uint64_t eos = 7;
  uint64_t ngram_size = 3;  // N
  uint64_t heads_per_ngram = 2;
  uint64_t base = 31;  // ngram_vocab_size_base
  uint64_t divisor = 128;
  uint64_t seed = 1234;
  uint64_t dense_index = 0;  // p: place of the layer among the PLE layers
};

struct HashNumbers {
  std::vector<uint64_t> multipliers;  // [N]
  std::vector<uint64_t> sizes;        // [heads]
  std::vector<uint64_t> offsets;      // [heads]
  uint64_t usable_rows = 0;
  uint64_t padded_rows = 0;
};

HashNumbers DeriveHash(const HashConfig& config);

// Row ids [T, heads] of a whole sequence.
std::vector<uint64_t> HashTokens(const HashConfig& config, const HashNumbers& numbers,
                                 const std::vector<uint32_t>& tokens);

// The N - 1 ids before token `position`, oldest first, as the carry holds them (EOS before the start).
std::vector<uint32_t> HistoryAt(const HashConfig& config, const std::vector<uint32_t>& tokens, size_t position);

}  // namespace pleiad::oracle
