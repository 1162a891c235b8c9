// The PLE stage in FP64, one whole sequence at a time, written from the formula. Slow and plain on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/oracle/hash.h"

namespace pleiad::oracle {

struct Shape {
  size_t hidden = 0;  // H
  size_t hc = 4;
  size_t embed = 0;   // E
  size_t kernel = 4;  // K
  double eps = 1e-6;

  size_t channels() const { return hc * hidden; }  // C
};

// BF16 bits, as stored in a checkpoint.
struct Weights {
  std::vector<uint16_t> key;         // [C, E]
  std::vector<uint16_t> value;       // [H, E]
  std::vector<uint16_t> norm_key;    // [C], stored as w
  std::vector<uint16_t> norm_query;  // [C]
  std::vector<uint16_t> norm_conv;   // [C]
  std::vector<uint16_t> conv;        // [C, K]
};

// One layer: everything a sequence needs.
struct Model {
  HashConfig hash;
  HashNumbers numbers;
  Shape shape;
  Weights weights;
  // Values of a row [head_dim], after the FP8 decode and its rounding.
  std::function<std::vector<double>(uint64_t row)> row;

  size_t dilation() const { return hash.ngram_size; }
  size_t state_len() const { return (shape.kernel - 1) * dilation(); }
  size_t heads() const { return (hash.ngram_size - 1) * hash.heads_per_ngram; }
};

enum class KvRounding { kNone, kBf16 };

struct Trace {
  std::vector<uint64_t> ids;        // [T, heads]
  std::vector<double> embeddings;   // [T, E]
  std::vector<double> gate;         // [T, hc]
  std::vector<double> conv_input;   // [T, C]: x
  std::vector<double> delta;        // [T, C]: u + silu(c)
  std::vector<double> highway_out;  // [T, C]
};

// `highway` [T, C].
Trace RunTokens(const Model& model, const std::vector<uint32_t>& tokens, const std::vector<double>& highway,
                KvRounding rounding);

// The same from `embeddings` [T, E]; ids stay empty.
Trace RunEmbeddings(const Model& model, const std::vector<double>& embeddings, const std::vector<double>& highway,
                    KvRounding rounding);

// Conv rows of the carry after `position` tokens: [state_len, C], oldest first, zeros before the start.
std::vector<double> ConvRowsAt(const Model& model, const Trace& trace, size_t position);

// |a - b| / |b|, or |a| where b is all zeros. NaN when either holds one, so that no bound accepts it.
double RelativeL2(const std::vector<double>& a, const std::vector<double>& b);
double RelativeL2(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace pleiad::oracle
