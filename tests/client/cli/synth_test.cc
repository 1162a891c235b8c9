#include "client/cli/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/model/checkpoint.h"
#include "nlohmann/json.hpp"

namespace pleiad {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Tensor {
  std::string file;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

class SynthTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string dir = testing::TempDir() + "/synthXXXXXX";
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    root_ = dir;
    options_.dir = (root_ / "checkpoint").string();
    ModelConfig& config = options_.config;
    config.geometry.hidden_size = 24;
    config.geometry.hc_count = 2;
    config.geometry.embed_dim = 32;
    config.geometry.heads_per_ngram = 2;
    config.ple_layers = {LayerIndex(1), LayerIndex(4)};
    config.num_hidden_layers = 6;
    config.vocab_size = 1000;
    config.eos_token_id = 7;
    config.ngram_vocab_size_base = 1000;
    options_.shards = 12;
    options_.files = 3;
  }

  void TearDown() override { fs::remove_all(root_); }

  void Write() {
    const absl::Status status = RunSynth(options_, [this](const SynthProgress& p) { progress_.push_back(p); });
    ASSERT_TRUE(status.ok()) << status;
  }

  // All tensors, by a reading of the format that shares nothing with the writer: data without gaps, in bounds.
  std::map<std::string, Tensor> ReadAll() {
    std::map<std::string, Tensor> tensors;
    for (const auto& entry : fs::directory_iterator(options_.dir)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string file = ReadFile(entry.path());
      uint64_t length = 0;
      std::memcpy(&length, file.data(), 8);
      EXPECT_EQ((8 + length) % 8, 0u);
      uint64_t end = 0;
      std::map<uint64_t, uint64_t> ranges;
      const json header = json::parse(file.substr(8, length));
      for (const auto& [name, value] : header.items()) {
        if (name == "__metadata__") continue;
        const uint64_t first = value["data_offsets"][0];
        const uint64_t last = value["data_offsets"][1];
        ranges[first] = last;
        EXPECT_TRUE(tensors
                        .try_emplace(name, Tensor{entry.path().filename(), value["dtype"], value["shape"],
                                                  file.substr(8 + length + first, last - first)})
                        .second)
            << name;
      }
      for (const auto& [first, last] : ranges) {
        EXPECT_EQ(first, end);
        end = last;
      }
      EXPECT_EQ(file.size(), 8 + length + end);
    }
    return tensors;
  }

  fs::path root_;
  SynthOptions options_;
  std::vector<SynthProgress> progress_;
};

constexpr char kLayer[] = "model.language_model.layers.1.ple.";
// 1009 + 1013 + 1019 + 1021 rows, padded to a multiple of 128.
constexpr uint64_t kRows = 4096;

TEST_F(SynthTest, TensorsHaveTheReleasedNamesShapesAndDtypes) {
  Write();
  const std::map<std::string, Tensor> tensors = ReadAll();
  const auto shape = [&](const std::string& name) { return tensors.at(kLayer + name).shape; };
  EXPECT_THAT(shape("key_proj.weight"), ElementsAre(48, 32));
  EXPECT_THAT(shape("value_proj.weight"), ElementsAre(24, 32));
  EXPECT_THAT(shape("norm_key.weight"), ElementsAre(48));
  EXPECT_THAT(shape("norm_query.weight"), ElementsAre(48));
  EXPECT_THAT(shape("norm_conv.weight"), ElementsAre(48));
  EXPECT_THAT(shape("conv1d.weight"), ElementsAre(48, 1, 4));
  EXPECT_THAT(shape("ple_embedding.layer_multipliers"), ElementsAre(3));
  EXPECT_THAT(shape("ple_embedding.ngram_heads_vocab_sizes"), ElementsAre(4));
  EXPECT_THAT(shape("ple_embedding.ngram_heads_offsets"), ElementsAre(4));
  EXPECT_EQ(tensors.at(std::string(kLayer) + "ple_embedding.ngram_heads_offsets").dtype, "I64");
  uint64_t rows = 0;
  std::set<std::string> files;
  for (int i = 0; i < 12; ++i) {
    const Tensor& shard = tensors.at(kLayer + ("ple_embedding.ngram_embedding.shard_" + std::to_string(i) + ".weight"));
    EXPECT_EQ(shard.dtype, "BF16");
    EXPECT_EQ(shard.shape[1], 8u);
    EXPECT_EQ(shard.bytes.size(), shard.shape[0] * 16);
    rows += shard.shape[0];
    files.insert(shard.file);
  }
  EXPECT_EQ(rows, kRows);
  EXPECT_GT(files.size(), 1u);
  EXPECT_EQ(tensors.count("model.language_model.layers.4.ple.key_proj.weight"), 1u);
}

TEST_F(SynthTest, TheIndexNamesTheFileOfEveryTensor) {
  Write();
  const json index = json::parse(ReadFile(fs::path(options_.dir) / "model.safetensors.index.json"));
  const std::map<std::string, Tensor> tensors = ReadAll();
  EXPECT_EQ(index["weight_map"].size(), tensors.size());
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(index["weight_map"][name], tensor.file) << name;
    total += tensor.bytes.size();
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  ASSERT_FALSE(progress_.empty());
  EXPECT_EQ(progress_.back().bytes_written, total);
  EXPECT_EQ(progress_.back().bytes_total, total);
}

TEST_F(SynthTest, TheConfigIsNestedHasOneBasedLayersAndNamesNoDefaultSeed) {
  Write();
  const json config = json::parse(ReadFile(fs::path(options_.dir) / "config.json"));
  const json& text = config["text_config"];
  EXPECT_EQ(text["ple_layer_ids"], json({2, 5}));
  EXPECT_EQ(text["ngram_vocab_size_base"], 1000);
  EXPECT_EQ(text["split_ngram_parts"], 12);
  EXPECT_FALSE(text.contains("seed"));
  EXPECT_FALSE(config.contains("hidden_size"));
}

TEST_F(SynthTest, RowsOfEachDtypeAreFiniteVariedAndRepeatable) {
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF8E4M3}) {
    std::map<std::string, Tensor> first;
    for (const int run : {0, 1}) {
      fs::remove_all(options_.dir);
      options_.row_dtype = dtype;
      Write();
      const std::map<std::string, Tensor> tensors = ReadAll();
      if (run == 0) {
        first = tensors;
        continue;
      }
      for (const auto& [name, tensor] : tensors) EXPECT_EQ(tensor.bytes, first.at(name).bytes) << name;
    }
    const std::string table = std::string(kLayer) + "ple_embedding.ngram_embedding.";
    const std::string& bytes = first.at(table + "shard_3.weight").bytes;
    EXPECT_NE(bytes.substr(0, 512), first.at(table + "shard_4.weight").bytes.substr(0, 512));
    double sum = 0;
    double squares = 0;
    const size_t count = bytes.size() / ByteSize(dtype);
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * ByteSize(dtype), ByteSize(dtype));
      const float value = dtype == DType::kF32    ? std::bit_cast<float>(bits)
                          : dtype == DType::kBf16 ? Bf16ToFloat(static_cast<Bf16>(bits))
                                                  : F8E4M3ToFloat(static_cast<uint8_t>(bits)) * options_.row_scale;
      ASSERT_TRUE(std::isfinite(value));
      ASSERT_LE(std::abs(value), 0.125f);
      sum += value;
      squares += value * value;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(count));
    EXPECT_GT(deviation, 0.01);
    EXPECT_LT(std::abs(sum / static_cast<double>(count)), 0.2 * deviation);
    EXPECT_EQ(first.count(table + "weight_scale"), dtype == DType::kF8E4M3 ? 1u : 0u);
  }
}

TEST_F(SynthTest, TheLastShardIsShorterWhenRowsDoNotDivide) {
  options_.shards = 7;
  Write();
  const std::map<std::string, Tensor> tensors = ReadAll();
  const std::string table = std::string(kLayer) + "ple_embedding.ngram_embedding.shard_";
  EXPECT_EQ(tensors.at(table + "0.weight").shape[0], 586u);
  EXPECT_EQ(tensors.at(table + "6.weight").shape[0], kRows - 6 * 586);
  EXPECT_EQ(tensors.count(table + "7.weight"), 0u);
}

TEST_F(SynthTest, SparseRowsTakeNoDiskAndReadAsZeros) {
  options_.row_fill = RowFill::kSparse;
  options_.config.ngram_vocab_size_base = 10'000'000;
  options_.files = 1;
  Write();
  struct stat info = {};
  const std::string path = options_.dir + "/model-00001-of-00001.safetensors";
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_GT(info.st_size, int64_t{2} * 4 * 10'000'000 * 16);
  EXPECT_LT(info.st_blocks * 512, 1 << 20);
  std::ifstream file(path, std::ios::binary);
  file.seekg(info.st_size / 4);  // inside the first table
  std::string rows(64, 'x');
  file.read(rows.data(), 64);
  EXPECT_EQ(rows, std::string(64, '\0'));
}

TEST_F(SynthTest, AFolderWithACheckpointIsNotTouched) {
  Write();
  const std::string before = ReadFile(fs::path(options_.dir) / "config.json");
  options_.config.vocab_size = 2000;
  EXPECT_EQ(RunSynth(options_, nullptr).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(fs::path(options_.dir) / "config.json"), before);
}

TEST_F(SynthTest, BadOptionsAreRefusedByNameAndWriteNothing) {
  const auto refused = [&](const SynthOptions& options, const std::string& field) {
    const absl::Status status = RunSynth(options, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    EXPECT_FALSE(fs::exists(options_.dir));
  };
  SynthOptions bad = options_;
  bad.shards = 0;
  refused(bad, "shards: 0");
  bad = options_;
  bad.files = 0;
  refused(bad, "files: 0");
  bad = options_;
  bad.row_dtype = DType::kI64;
  refused(bad, "row_dtype: I64");
  bad = options_;
  bad.row_scale = 0;
  refused(bad, "row_scale: 0");
  bad = options_;
  bad.config.geometry.embed_dim = 33;
  refused(bad, "ple_embed_dim");
}

TEST_F(SynthTest, TheServersOwnReaderOpensIt) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4M3}) {
    fs::remove_all(options_.dir);
    options_.row_dtype = dtype;
    Write();
    const auto checkpoint = Checkpoint::Open({.dir = options_.dir, .eos_token_id = std::nullopt});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_EQ((*checkpoint)->layers().size(), 2u);
    const TableLayout& table = (*checkpoint)->layers()[0].table;
    EXPECT_EQ(table.rows, kRows);
    EXPECT_EQ(table.dtype, dtype);
    EXPECT_EQ(table.shards.size(), 12u);
    EXPECT_EQ(table.scale, dtype == DType::kF8E4M3 ? 0.0625f : 1.0f);
    EXPECT_TRUE((*checkpoint)->LoadWeights(LayerOrdinal(1)).ok());
  }
}

}  // namespace
}  // namespace pleiad
