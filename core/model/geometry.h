// The shape of the PLE stage. Symbols as in the numerics: H hidden, hc streams, C = hc * H channels,
// E embed dim, N n-gram size, K conv taps, T tokens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pleiad {

struct Geometry {
  uint32_t hidden_size = 0;       // H
  uint32_t hc_count = 4;          // hc
  uint32_t embed_dim = 0;         // E
  uint32_t conv_kernel_size = 4;  // K
  uint32_t ngram_size = 3;        // N, also the conv's dilation
  uint32_t heads_per_ngram = 8;
  float rms_norm_eps = 1e-6f;

  uint32_t channels() const { return hc_count * hidden_size; }           // C
  uint32_t heads() const { return (ngram_size - 1) * heads_per_ngram; }  // rows per token
  uint32_t head_dim() const { return embed_dim / heads(); }              // values per row
  uint32_t context_len() const { return ngram_size - 1; }                // ids of history
  uint32_t dilation() const { return ngram_size; }
  uint32_t state_len() const { return (conv_kernel_size - 1) * ngram_size; }  // conv rows of a carry
  // Length of the aux blob: u32 count, context_len u32 ids, [state_len, C] F32.
  uint64_t aux_bytes() const { return 4 + 4ull * context_len() + 4ull * state_len() * channels(); }
};

}  // namespace pleiad
