// Writes a checkpoint in the released layout, filled with seeded random numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "core/base/numeric.h"
#include "core/model/config.h"

namespace pleiad {

enum class RowFill {
  kRandom,
  kSparse,  // no data is written: rows read as zeros and take no disk
};

struct SynthOptions {
  std::string dir;  // made when absent; refused when it holds a checkpoint
  // Geometry, PLE layers, vocabulary, seed of the hash. ngram_vocab_size_base sets the row count: about
  // heads * base rows a layer.
  ModelConfig config;
  DType row_dtype = DType::kBf16;  // kBf16, kF32 or kF8E4M3
  float row_scale = 0.0625f;       // of kF8E4M3, stored as BF16
  uint32_t shards = 128;           // of each layer's table
  uint32_t files = 8;
  RowFill row_fill = RowFill::kRandom;
  uint64_t weight_seed = 1;

  // InvalidArgument naming the field, its value and the rule.
  absl::Status Validate() const;
};

// The released model's geometry, vocabulary and layer list, with tables of 16 * 20,000,000 rows.
ModelConfig ReleasedConfig();

struct SynthProgress {
  uint64_t bytes_written = 0;  // sparse rows count as written
  uint64_t bytes_total = 0;
};

// Writes config.json (fields under text_config), model.safetensors.index.json and the files; tensors lie in text
// order of their names, an unrelated one at the head of each file. The same options give the same bytes. Blocks;
// `on_progress` is called from the calling thread every few MB and may be empty. Returns
//   InvalidArgument    as Validate
//   AlreadyExists      `dir` holds config.json or safetensors files
//   ResourceExhausted  the disk is full
//   what the system said, as an absl code, with the path
// After a failure the files written so far stay; config.json is written last.
absl::Status RunSynth(const SynthOptions& options, const std::function<void(const SynthProgress&)>& on_progress);

}  // namespace pleiad
