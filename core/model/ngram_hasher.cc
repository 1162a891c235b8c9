#include "core/model/ngram_hasher.h"

#include <cstddef>
#include <limits>
#include <utility>

namespace pleiad {
namespace {

// value mod divisor with reciprocal = floor((2^64 - 1) / divisor). The estimated quotient is short by at most one.
inline uint64_t ModByReciprocal(uint64_t value, uint64_t divisor, uint64_t reciprocal) {
  const auto quotient = static_cast<uint64_t>((static_cast<unsigned __int128>(value) * reciprocal) >> 64);
  const uint64_t remainder = value - quotient * divisor;
  return remainder >= divisor ? remainder - divisor : remainder;
}

}  // namespace

NgramHasher::NgramHasher(HashConstants constants, uint32_t ngram_size, uint32_t heads_per_ngram, uint32_t eos_token_id)
    : constants_(std::move(constants)),
      ngram_size_(ngram_size),
      heads_per_ngram_(heads_per_ngram),
      eos_token_id_(eos_token_id) {
  heads_.reserve(constants_.head_sizes.size());
  for (size_t head = 0; head < constants_.head_sizes.size(); ++head) {
    const uint64_t size = constants_.head_sizes[head];
    heads_.push_back({size, std::numeric_limits<uint64_t>::max() / size, constants_.head_offsets[head]});
  }
}

void NgramHasher::Hash(absl::Span<const uint32_t> history, absl::Span<const uint32_t> tokens,
                       absl::Span<RowId> ids) const {
  const uint64_t* multipliers = constants_.multipliers.data();
  const size_t context = ngram_size_ - 1;
  RowId* out = ids.data();
  for (size_t t = 0; t < tokens.size(); ++t) {
    uint64_t mix = tokens[t] * multipliers[0];
    const Head* head = heads_.data();
    bool cut = false;
    for (size_t back = 1; back <= context; ++back) {
      uint32_t id = eos_token_id_;
      if (!cut) {
        id = back <= t ? tokens[t - back] : history[context + t - back];
        cut = id == eos_token_id_;
      }
      mix ^= id * multipliers[back];
      for (uint32_t h = 0; h < heads_per_ngram_; ++h, ++head) {
        *out++ = RowId(ModByReciprocal(mix, head->size, head->reciprocal) + head->offset);
      }
    }
  }
}

}  // namespace pleiad
