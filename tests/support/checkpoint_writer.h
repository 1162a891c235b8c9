// Small qwen4_exp checkpoints for tests: seeded, of any geometry, and easy to break on purpose.
//
//   TempDir dir;
//   CheckpointSpec spec;                      // the toy hash config; see the defaults
//   spec.row_dtype = DType::kF8E4M3;
//   TestCheckpoint checkpoint = MakeCheckpoint(spec);
//   checkpoint.Erase("weight_scale");         // a broken variant
//   checkpoint.Write(dir.path());
//   auto opened = Checkpoint::Open({dir.path()});
//
// MakeCheckpoint(CheckpointSpec{}) as written opens without error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/numeric.h"
#include "core/model/config.h"
#include "core/model/geometry.h"

namespace pleiad::testing {

enum class RowValues : uint8_t {
  kRandom,    // normal, about 0.05 in size; every FP8 code but the NaNs
  kLabelled,  // every value of row r is r: in BF16 (exact up to 256) and F32 the number, in FP8 the byte r mod 256
};
enum class Prefix : uint8_t { kTextOnly, kMultimodal };   // model.layers.* or model.language_model.layers.*
enum class Index : uint8_t { kWritten, kAbsent };         // model.safetensors.index.json
enum class Layout : uint8_t { kSharded, kSingleTensor };  // shard_{i}.weight or one weight

struct CheckpointSpec {
  // hash: the toy config (head sizes 31 37 41 43, 152 usable rows, padded to 256 in its first layer)
  uint32_t vocab_size = 1000;
  uint32_t eos_token_id = 7;
  std::optional<uint64_t> seed = 1234;  // nullopt: the field is left out
  uint64_t ngram_vocab_size_base = 31;
  uint64_t ngram_vocab_divisor = 128;
  // geometry: heads 4, head_dim 8
  Geometry geometry{.hidden_size = 32, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2};
  std::vector<uint32_t> ple_layer_ids = {2};  // one-based
  uint32_t num_hidden_layers = 4;

  DType row_dtype = DType::kBf16;  // kBf16, kF32, kF8E4M3
  float scale = 0.5f;              // stored as F32 [1]; only with kF8E4M3
  RowValues row_values = RowValues::kRandom;
  // Rows of each layer's table; the default is as many as the hash pads to.
  std::optional<uint64_t> rows;
  // Shards of ceil(rows / shards) rows, the last one shorter where it does not divide.
  uint32_t shards = 4;
  Layout layout = Layout::kSharded;
  // Shards are spread over the files in text order of their names, with "unrelated.*" tensors of 0xEE bytes between
  // them, and end each file; dense tensors lie in the first. No data start and no file length is a multiple of 512.
  uint32_t files = 2;
  Prefix prefix = Prefix::kTextOnly;
  Index index = Index::kWritten;
  uint32_t weight_seed = 1;  // of dense weights and random rows
};

// The spec as the config it makes; Validate() has passed. Aborts on a spec that no config can have.
ModelConfig ToModelConfig(const CheckpointSpec& spec);

// One tensor as it will be written. `bytes` holds the raw little-endian values.
struct TestTensor {
  std::string name;
  std::string dtype;  // "BF16", ...
  std::vector<uint64_t> shape;
  std::string bytes;
  uint32_t file = 0;
};

// A checkpoint in memory: change anything, then write it.
struct TestCheckpoint {
  nlohmann::json config;            // config.json
  std::vector<TestTensor> tensors;  // in the order of their bytes within each file
  uint32_t files = 1;
  Index index = Index::kWritten;

  // Names end in `suffix`, e.g. "shard_3.weight" or "layers.1.ple.key_proj.weight"; abort unless exactly one does.
  TestTensor& Find(const std::string& suffix);
  const TestTensor& Find(const std::string& suffix) const;
  void Erase(const std::string& suffix);

  // Writes config.json, model-0000k-of-0000n.safetensors and the index into the folder; aborts on failure.
  void Write(const std::string& dir) const;
  std::string FileName(uint32_t file) const;
};

TestCheckpoint MakeCheckpoint(const CheckpointSpec& spec);

// MakeCheckpoint and Write.
void WriteCheckpoint(const CheckpointSpec& spec, const std::string& dir);

// Writes `tensors` as one safetensors file, in their order, whatever their `file`; aborts on failure.
void WriteSafetensors(const std::string& path, const std::vector<TestTensor>& tensors);

// A file's bytes; aborts on failure.
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& bytes);

}  // namespace pleiad::testing
