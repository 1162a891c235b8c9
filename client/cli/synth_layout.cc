#include "client/cli/synth_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/model/hash_constants.h"
#include "nlohmann/json.hpp"

namespace pleiad {
namespace {

using nlohmann::json;
using Content = SynthTensor::Content;

SynthTensor Uniform(std::string name, std::vector<uint64_t> shape, double limit) {
  SynthTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.limit = static_cast<float>(limit);
  return tensor;
}

SynthTensor Integers(std::string name, const std::vector<uint64_t>& values) {
  SynthTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = DType::kI64;
  tensor.shape = {values.size()};
  tensor.content = Content::kIntegers;
  tensor.integers = values;
  return tensor;
}

void AppendLayer(const SynthOptions& options, LayerOrdinal ordinal, std::vector<SynthTensor>& tensors) {
  const ModelConfig& config = options.config;
  const Geometry& shape = config.geometry;
  const HashConstants hash = DeriveHashConstants(config, ordinal);
  const std::string prefix =
      absl::StrCat("model.language_model.layers.", config.ple_layers[ordinal.value()].value(), ".ple.");
  const uint64_t channels = shape.channels();

  // Keeps k and v of about the size of a row's values.
  const double projection = std::sqrt(3.0 / shape.embed_dim);
  tensors.push_back(Uniform(prefix + "key_proj.weight", {channels, shape.embed_dim}, projection));
  tensors.push_back(Uniform(prefix + "value_proj.weight", {shape.hidden_size, shape.embed_dim}, projection));
  for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) {
    tensors.push_back(Uniform(absl::StrCat(prefix, norm, ".weight"), {channels}, 0.1));
  }
  tensors.push_back(Uniform(prefix + "conv1d.weight", {channels, 1, shape.conv_kernel_size}, 0.5));

  const std::string table = prefix + "ple_embedding.";
  tensors.push_back(Integers(table + "layer_multipliers", hash.multipliers));
  tensors.push_back(Integers(table + "ngram_heads_vocab_sizes", hash.head_sizes));
  tensors.push_back(Integers(table + "ngram_heads_offsets", hash.head_offsets));
  const uint64_t rows_per_shard = (hash.padded_rows + options.shards - 1) / options.shards;
  for (uint64_t first = 0, i = 0; first < hash.padded_rows; first += rows_per_shard, ++i) {
    SynthTensor shard;
    shard.name = absl::StrCat(table, "ngram_embedding.shard_", i, ".weight");
    shard.dtype = options.row_dtype;
    shard.shape = {std::min(rows_per_shard, hash.padded_rows - first), shape.head_dim()};
    shard.content = Content::kRows;
    tensors.push_back(std::move(shard));
  }
  if (options.row_dtype == DType::kF8E4M3) {
    SynthTensor scale;
    scale.name = table + "ngram_embedding.weight_scale";
    scale.shape = {1};
    scale.content = Content::kScale;
    tensors.push_back(std::move(scale));
  }
}

}  // namespace

uint64_t SynthTensor::bytes() const {
  uint64_t count = ByteSize(dtype);
  for (const uint64_t dimension : shape) count *= dimension;
  return count;
}

std::vector<SynthFile> PlanSynthFiles(const SynthOptions& options) {
  std::vector<SynthTensor> tensors;
  for (uint32_t i = 0; i < options.config.ple_layers.size(); ++i) AppendLayer(options, LayerOrdinal(i), tensors);
  std::sort(tensors.begin(), tensors.end(), [](const SynthTensor& a, const SynthTensor& b) { return a.name < b.name; });
  uint64_t total = 0;
  for (const SynthTensor& tensor : tensors) total += tensor.bytes();

  std::vector<SynthFile> files(options.files);
  for (uint32_t i = 0; i < options.files; ++i) {
    files[i].name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, options.files);
    // Sorts before the layers' names, so the header's order is the data's.
    files[i].tensors.push_back(Uniform(absl::StrCat("model.language_model.adapter.", i, ".weight"), {12}, 1.0));
  }
  uint64_t before = 0;
  for (SynthTensor& tensor : tensors) {
    const uint64_t file = std::min<uint64_t>(
        options.files - 1,
        static_cast<uint64_t>(static_cast<double>(before) / static_cast<double>(total) * options.files));
    before += tensor.bytes();
    files[file].tensors.push_back(std::move(tensor));
  }
  for (SynthFile& file : files) {
    for (SynthTensor& tensor : file.tensors) {
      tensor.offset = file.data_bytes;
      file.data_bytes += tensor.bytes();
    }
  }
  return files;
}

std::string SafetensorsHeader(const SynthFile& file) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const SynthTensor& tensor : file.tensors) {
    header[tensor.name] = {{"dtype", Name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return length + text;
}

std::string SynthIndexJson(const std::vector<SynthFile>& files) {
  json index;
  uint64_t total = 0;
  for (const SynthFile& file : files) {
    total += file.data_bytes;
    for (const SynthTensor& tensor : file.tensors) index["weight_map"][tensor.name] = file.name;
  }
  index["metadata"]["total_size"] = total;
  return index.dump(2) + "\n";
}

std::string SynthConfigJson(const SynthOptions& options) {
  const ModelConfig& config = options.config;
  const Geometry& shape = config.geometry;
  std::vector<uint32_t> layer_ids;
  for (const LayerIndex layer : config.ple_layers) layer_ids.push_back(layer.value() + 1);
  json text = {{"model_type", "qwen4_exp_text"},
               {"dtype", "bfloat16"},
               {"hidden_size", shape.hidden_size},
               {"hc_count", shape.hc_count},
               {"num_hidden_layers", config.num_hidden_layers},
               {"vocab_size", config.vocab_size},
               {"eos_token_id", config.eos_token_id},
               {"rms_norm_eps", shape.rms_norm_eps},
               {"ple_layer_ids", layer_ids},
               {"ple_embed_dim", shape.embed_dim},
               {"ple_conv_kernel_size", shape.conv_kernel_size},
               {"ngram_size", shape.ngram_size},
               {"heads_per_ngram", shape.heads_per_ngram},
               {"ngram_vocab_size_base", config.ngram_vocab_size_base},
               {"make_ngram_vocab_size_divisible_by", config.ngram_vocab_divisor},
               {"split_ngram_parts", options.shards}};
  // The released config has no seed.
  if (config.seed != ModelConfig().seed) text["seed"] = config.seed;
  json root = {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
               {"model_type", "qwen4_exp"},
               {"text_config", std::move(text)}};
  if (config.image_token_id) root["image_token_id"] = *config.image_token_id;
  if (config.video_token_id) root["video_token_id"] = *config.video_token_id;
  return root.dump(2) + "\n";
}

}  // namespace pleiad
