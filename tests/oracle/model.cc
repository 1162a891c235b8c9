#include "tests/oracle/model.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/oracle/numbers.h"
#include "tests/oracle/trace_file.h"

namespace pleiad::oracle {
namespace {

std::function<std::vector<double>(uint64_t)> TableFn(std::shared_ptr<std::vector<double>> table, size_t head_dim) {
  return [table = std::move(table), head_dim](uint64_t row) {
    const auto begin = table->begin() + static_cast<ptrdiff_t>(row * head_dim);
    return std::vector<double>(begin, begin + static_cast<ptrdiff_t>(head_dim));
  };
}

std::vector<uint16_t> RandomBf16(size_t count, double deviation, uint64_t seed) {
  std::vector<uint16_t> bits;
  bits.reserve(count);
  for (double value : RandomValues(count, deviation, seed)) bits.push_back(Bf16Bits(RoundToBf16(value)));
  return bits;
}

std::vector<uint64_t> Unsigned(const std::vector<int64_t>& values) { return {values.begin(), values.end()}; }

}  // namespace

Model LoadModel(const std::string& directory, uint32_t layer_id) {
  std::ifstream in(directory + "/config.json");
  const nlohmann::json whole = nlohmann::json::parse(in);
  const nlohmann::json& json = whole.contains("text_config") ? whole.at("text_config") : whole;
  Model model;
  model.shape.hidden = json.at("hidden_size");
  model.shape.hc = json.value("hc_count", 4);
  model.shape.embed = json.value("ple_embed_dim", model.shape.hidden);
  model.shape.kernel = json.value("ple_conv_kernel_size", 4);
  model.shape.eps = json.value("rms_norm_eps", 1e-6);
  model.hash.vocab_size = json.at("vocab_size");
  const auto& eos = json.at("eos_token_id");
  model.hash.eos = eos.is_array() ? eos.at(0).get<uint64_t>() : eos.get<uint64_t>();
  model.hash.ngram_size = json.value("ngram_size", 3);
  model.hash.heads_per_ngram = json.value("heads_per_ngram", 8);
  model.hash.base = json.value("ngram_vocab_size_base", 20000000);
  model.hash.divisor = json.value("make_ngram_vocab_size_divisible_by", 128);
  model.hash.seed = json.value("seed", 1234);
  for (uint32_t id : json.at("ple_layer_ids").get<std::vector<uint32_t>>()) model.hash.dense_index += id < layer_id;
  model.numbers = DeriveHash(model.hash);

  std::map<std::string, std::shared_ptr<TraceFile>> where;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors" || file.path().filename() == "golden.safetensors") continue;
    auto reader = std::make_shared<TraceFile>(file.path().string());
    for (const std::string& name : reader->Names()) where[name] = reader;
  }
  std::string prefix = "model.layers." + std::to_string(layer_id - 1) + ".ple.";
  if (!where.count(prefix + "key_proj.weight")) prefix.insert(6, "language_model.");
  const auto words = [&](const std::string& name) { return where.at(prefix + name)->Words(prefix + name); };
  const auto integers = [&](const std::string& name) {
    return Unsigned(where.at(prefix + name)->Integers(prefix + name));
  };
  model.weights = {words("key_proj.weight"),   words("value_proj.weight"), words("norm_key.weight"),
                   words("norm_query.weight"), words("norm_conv.weight"),  words("conv1d.weight")};
  model.numbers.multipliers = integers("ple_embedding.layer_multipliers");
  model.numbers.sizes = integers("ple_embedding.ngram_heads_vocab_sizes");
  model.numbers.offsets = integers("ple_embedding.ngram_heads_offsets");

  auto table = std::make_shared<std::vector<double>>();
  const std::string embedding = prefix + "ple_embedding.ngram_embedding.";
  for (size_t shard = 0;; ++shard) {
    const std::string name = embedding + "shard_" + std::to_string(shard) + ".weight";
    const auto it = where.find(name);
    if (it == where.end()) break;
    const std::vector<double> rows = it->second->Values(name);
    table->insert(table->end(), rows.begin(), rows.end());
  }
  if (table->empty()) *table = where.at(embedding + "weight")->Values(embedding + "weight");
  if (const auto it = where.find(embedding + "weight_scale"); it != where.end()) {
    const double scale = it->second->Values(embedding + "weight_scale").at(0);
    for (double& value : *table) value = RoundToBf16(value * scale);
  }
  for (double& value : *table) value = RoundToBf16(value);
  model.row = TableFn(std::move(table), model.shape.embed / model.heads());
  return model;
}

Model RandomModel(const HashConfig& hash, const Shape& shape, uint64_t seed) {
  Model model;
  model.hash = hash;
  model.shape = shape;
  model.numbers = DeriveHash(hash);
  const size_t c = shape.channels();
  const double fan_in = 1 / std::sqrt(static_cast<double>(shape.embed));
  model.weights.key = RandomBf16(c * shape.embed, fan_in, seed + 1);
  model.weights.value = RandomBf16(shape.hidden * shape.embed, fan_in, seed + 2);
  model.weights.norm_key = RandomBf16(c, 0.2, seed + 3);
  model.weights.norm_query = RandomBf16(c, 0.2, seed + 4);
  model.weights.norm_conv = RandomBf16(c, 0.2, seed + 5);
  model.weights.conv = RandomBf16(c * shape.kernel, 0.5, seed + 6);
  const size_t head_dim = shape.embed / model.heads();
  auto table = std::make_shared<std::vector<double>>(RandomValues(model.numbers.padded_rows * head_dim, 1.0, seed + 7));
  for (double& value : *table) value = RoundToBf16(value);
  model.row = TableFn(std::move(table), head_dim);
  return model;
}

std::vector<double> RandomValues(size_t count, double deviation, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(deviation));
  std::vector<double> values(count);
  for (double& value : values) value = normal(generator);
  return values;
}

}  // namespace pleiad::oracle
