// Token ids to row ids: the n-gram hash of the qwen4_exp reference.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/model/hash_constants.h"

namespace pleiad {

// Immutable and thread-safe.
class NgramHasher {
 public:
  NgramHasher(HashConstants constants, uint32_t ngram_size, uint32_t heads_per_ngram, uint32_t eos_token_id);

  // Row ids of `tokens` [T], written to `ids` [T, heads] in token order. `history` [N-1] holds the ids before
  // the first token, oldest first; a fresh sequence has EOS there. The first EOS met walking back from a token
  // turns itself and everything older into EOS; the token's own EOS does not cut its own window.
  // All ids are inside the vocabulary: the caller has checked.
  void Hash(absl::Span<const uint32_t> history, absl::Span<const uint32_t> tokens, absl::Span<RowId> ids) const;

  uint32_t heads() const { return static_cast<uint32_t>(constants_.head_sizes.size()); }
  uint32_t heads_per_ngram() const { return heads_per_ngram_; }
  uint32_t eos_token_id() const { return eos_token_id_; }
  uint32_t context_len() const { return ngram_size_ - 1; }
  const HashConstants& constants() const { return constants_; }

 private:
  struct Head {
    uint64_t size;
    uint64_t reciprocal;  // floor((2^64 - 1) / size)
    uint64_t offset;
  };

  HashConstants constants_;
  std::vector<Head> heads_;
  uint32_t ngram_size_;
  uint32_t heads_per_ngram_;
  uint32_t eos_token_id_;
};

}  // namespace pleiad
