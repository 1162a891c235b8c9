#include "tests/support/checkpoint_writer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/model/hash_constants.h"

namespace pleiad::testing {
namespace {

using nlohmann::json;

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "checkpoint_writer: " << why << std::endl;
  std::abort();
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
void Append(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Seeded numbers that are the same with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Next() { return engine_(); }
  // In [-1, 1), spread like a sum of four uniform numbers.
  float Value() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(Next() >> 40) * 0x1p-24f;
    return (sum - 2.0f) / 2.0f;
  }

 private:
  std::mt19937_64 engine_;
};

std::string RandomBf16(uint64_t count, float size, Random* random) {
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) Append(&bytes, FloatToBf16(random->Value() * size));
  return bytes;
}

void AppendValue(const CheckpointSpec& spec, uint64_t row, Random* random, std::string* bytes) {
  const bool labelled = spec.row_values == RowValues::kLabelled;
  if (spec.row_dtype == DType::kF8E4M3) {
    auto code = static_cast<uint8_t>(row);
    while (!labelled) {
      code = static_cast<uint8_t>(random->Next() >> 56);
      if ((code & 0x7F) != 0x7F) break;
    }
    Append(bytes, code);
    return;
  }
  const float value = labelled ? static_cast<float>(row) : random->Value() * 0.1f;
  if (spec.row_dtype == DType::kBf16) {
    Append(bytes, FloatToBf16(value));
  } else {
    Append(bytes, value);
  }
}

TestTensor Unrelated(uint64_t number, uint32_t file) {
  const uint64_t bytes = 40 + 8 * (number % 7);
  return {absl::StrCat("unrelated.", number, ".weight"), "U8", {bytes}, std::string(bytes, '\xEE'), file};
}

void AddDense(const CheckpointSpec& spec, const HashConstants& hash, const std::string& base, Random* random,
              std::vector<TestTensor>* out) {
  const Geometry& g = spec.geometry;
  const uint64_t channels = g.channels();
  const auto bf16 = [&](const char* name, std::vector<uint64_t> shape, float size) {
    uint64_t count = 1;
    for (const uint64_t extent : shape) count *= extent;
    out->push_back({base + name, "BF16", std::move(shape), RandomBf16(count, size, random), 0});
  };
  const auto i64 = [&](const char* name, const std::vector<uint64_t>& values) {
    out->push_back({base + "ple_embedding." + name, "I64", {values.size()}, Bytes(values), 0});
  };
  bf16("conv1d.weight", {channels, 1, g.conv_kernel_size}, 0.5f);
  bf16("key_proj.weight", {channels, g.embed_dim}, 0.5f);
  bf16("norm_conv.weight", {channels}, 0.25f);
  bf16("norm_key.weight", {channels}, 0.25f);
  bf16("norm_query.weight", {channels}, 0.25f);
  bf16("value_proj.weight", {g.hidden_size, g.embed_dim}, 0.5f);
  i64("layer_multipliers", hash.multipliers);
  i64("ngram_heads_offsets", hash.head_offsets);
  i64("ngram_heads_vocab_sizes", hash.head_sizes);
  if (spec.row_dtype == DType::kF8E4M3) {
    out->push_back({base + "ple_embedding.ngram_embedding.weight_scale", "F32", {1}, Bytes<float>({spec.scale}), 0});
  }
}

std::vector<TestTensor> MakeShards(const CheckpointSpec& spec, uint64_t rows, const std::string& base, Random* random) {
  const bool single = spec.layout == Layout::kSingleTensor;
  const uint64_t shards = single ? 1 : spec.shards;
  const uint64_t rows_per_shard = (rows + shards - 1) / shards;
  std::vector<TestTensor> out;
  for (uint64_t first = 0; first < rows; first += rows_per_shard) {
    const uint64_t end = std::min(rows, first + rows_per_shard);
    const std::string name = single ? "weight" : absl::StrCat("shard_", out.size(), ".weight");
    TestTensor shard{base + "ple_embedding.ngram_embedding." + name,
                     Name(spec.row_dtype),
                     {end - first, spec.geometry.head_dim()},
                     "",
                     0};
    for (uint64_t row = first; row < end; ++row) {
      for (uint32_t i = 0; i < spec.geometry.head_dim(); ++i) AppendValue(spec, row, random, &shard.bytes);
    }
    out.push_back(std::move(shard));
  }
  return out;
}

json MakeConfig(const CheckpointSpec& spec) {
  const Geometry& g = spec.geometry;
  json fields = {{"hidden_size", g.hidden_size},
                 {"hc_count", g.hc_count},
                 {"ple_layer_ids", spec.ple_layer_ids},
                 {"ple_embed_dim", g.embed_dim},
                 {"ple_conv_kernel_size", g.conv_kernel_size},
                 {"ngram_size", g.ngram_size},
                 {"heads_per_ngram", g.heads_per_ngram},
                 {"ngram_vocab_size_base", spec.ngram_vocab_size_base},
                 {"make_ngram_vocab_size_divisible_by", spec.ngram_vocab_divisor},
                 {"vocab_size", spec.vocab_size},
                 {"num_hidden_layers", spec.num_hidden_layers},
                 {"eos_token_id", spec.eos_token_id},
                 {"rms_norm_eps", g.rms_norm_eps}};
  if (spec.seed) fields["seed"] = *spec.seed;
  if (spec.prefix == Prefix::kTextOnly) return fields;
  return {{"model_type", "qwen4_exp"}, {"text_config", fields}};
}

}  // namespace

ModelConfig ToModelConfig(const CheckpointSpec& spec) {
  auto config = ParseModelConfig(MakeConfig(spec).dump());
  if (!config.ok()) Die(config.status().ToString());
  return *std::move(config);
}

TestCheckpoint MakeCheckpoint(const CheckpointSpec& spec) {
  TestCheckpoint checkpoint;
  checkpoint.config = MakeConfig(spec);
  checkpoint.files = spec.files;
  checkpoint.index = spec.index;
  const ModelConfig config = ToModelConfig(spec);
  Random random(spec.weight_seed);
  std::vector<TestTensor> shards;
  for (uint32_t p = 0; p < config.ple_layers.size(); ++p) {
    const std::string base =
        absl::StrCat(spec.prefix == Prefix::kTextOnly ? "model.layers." : "model.language_model.layers.",
                     config.ple_layers[p].value(), ".ple.");
    const HashConstants hash = DeriveHashConstants(config, LayerOrdinal(p));
    AddDense(spec, hash, base, &random, &checkpoint.tensors);
    auto layer = MakeShards(spec, spec.rows.value_or(hash.padded_rows), base, &random);
    std::move(layer.begin(), layer.end(), std::back_inserter(shards));
  }
  std::sort(shards.begin(), shards.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = static_cast<uint32_t>(i * spec.files / shards.size());
    checkpoint.tensors.push_back(Unrelated(i, shards[i].file));
    checkpoint.tensors.push_back(std::move(shards[i]));
  }
  return checkpoint;
}

void WriteCheckpoint(const CheckpointSpec& spec, const std::string& dir) { MakeCheckpoint(spec).Write(dir); }

TestTensor& TestCheckpoint::Find(const std::string& suffix) {
  TestTensor* found = nullptr;
  for (TestTensor& tensor : tensors) {
    if (!absl::EndsWith(tensor.name, suffix)) continue;
    if (found != nullptr) Die("two tensors end in " + suffix);
    found = &tensor;
  }
  if (found == nullptr) Die("no tensor ends in " + suffix);
  return *found;
}

const TestTensor& TestCheckpoint::Find(const std::string& suffix) const {
  return const_cast<TestCheckpoint*>(this)->Find(suffix);
}

void TestCheckpoint::Erase(const std::string& suffix) {
  tensors.erase(tensors.begin() + (&Find(suffix) - &tensors[0]));
}

std::string TestCheckpoint::FileName(uint32_t file) const {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, files);
}

void TestCheckpoint::Write(const std::string& dir) const {
  WriteFile(dir + "/config.json", config.dump(2));
  json weight_map = json::object();
  for (uint32_t file = 0; file < files; ++file) {
    std::vector<TestTensor> part;
    for (const TestTensor& tensor : tensors) {
      if (tensor.file != file) continue;
      weight_map[tensor.name] = FileName(file);
      part.push_back(tensor);
    }
    WriteSafetensors(dir + "/" + FileName(file), part);
  }
  if (index == Index::kWritten) {
    WriteFile(dir + "/model.safetensors.index.json", json({{"weight_map", weight_map}}).dump(2));
  }
}

void WriteSafetensors(const std::string& path, const std::vector<TestTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t end = 0;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes.size()}}};
    end += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  while ((8 + text.size()) % 512 == 0 || (8 + text.size() + end) % 512 == 0) text.append(8, ' ');
  std::string bytes;
  Append(&bytes, uint64_t{text.size()});
  bytes += text;
  for (const TestTensor& tensor : tensors) bytes += tensor.bytes;
  WriteFile(path, bytes);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) Die("cannot read " + path);
  return bytes;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) Die("cannot write " + path);
}

}  // namespace pleiad::testing
