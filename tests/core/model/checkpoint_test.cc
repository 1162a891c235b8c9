#include "core/model/checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/ngram_hasher.h"
#include "core/model/safetensors.h"
#include "tests/core/model/checkpoint_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using testing::AwkwardShards;
using testing::CheckpointSpec;
using ::testing::ElementsAre;
using testing::IsOk;
using testing::LabelledRow;
using testing::MakeCheckpoint;
using testing::ReadRow;
using ::testing::SizeIs;
using testing::TempDir;
using testing::TestCheckpoint;

constexpr DType kRowDTypes[] = {DType::kF8E4M3, DType::kBf16, DType::kF32};

void ExpectEveryLabel(const Checkpoint& checkpoint) {
  for (const PleLayer& layer : checkpoint.layers()) {
    ASSERT_EQ(layer.table.rows, 256u);
    for (uint64_t row = 0; row < 256; ++row) {
      ASSERT_EQ(ReadRow(checkpoint, layer, row), LabelledRow(layer.table.dtype, row, layer.table.head_dim)) << row;
    }
  }
}

TEST(CheckpointTest, OpensTheDefaultTestCheckpoint) {
  const auto opened = testing::Open(CheckpointSpec{});
  ASSERT_THAT(opened, IsOk());
  const Checkpoint& checkpoint = **opened;
  ASSERT_THAT(checkpoint.layers(), SizeIs(1));
  EXPECT_EQ(checkpoint.layers()[0].index, LayerIndex(1));
  EXPECT_EQ(checkpoint.layers()[0].hash, DeriveHashConstants(checkpoint.config(), LayerOrdinal(0)));
  EXPECT_THAT(checkpoint.files(), SizeIs(2));
}

TEST(CheckpointTest, B05_RowsOfEveryDTypeCarryTheirOwnLabel) {
  for (const DType dtype : kRowDTypes) {
    CheckpointSpec spec;
    spec.row_dtype = dtype;
    spec.row_values = testing::RowValues::kLabelled;
    const auto opened = testing::Open(spec);
    ASSERT_THAT(opened, IsOk());
    EXPECT_EQ((*opened)->layers()[0].table.dtype, dtype);
    ExpectEveryLabel(**opened);
  }
}

TEST(CheckpointTest, B08_AwkwardShardsGiveEveryRow) {
  for (const DType dtype : kRowDTypes) {
    const auto opened = testing::Open(AwkwardShards(dtype));
    ASSERT_THAT(opened, IsOk());
    EXPECT_THAT((*opened)->files(), SizeIs(3));
    ExpectEveryLabel(**opened);
  }
}

TEST(CheckpointTest, B08_TheAwkwardFilesAreAwkward) {
  TempDir dir;
  const TestCheckpoint checkpoint = MakeCheckpoint(AwkwardShards(DType::kBf16));
  checkpoint.Write(dir.path());
  for (uint32_t file = 0; file < 3; ++file) {
    const std::string bytes = testing::ReadFile(dir / checkpoint.FileName(file));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    EXPECT_NE((8 + header) % 512, 0u);
    EXPECT_NE(bytes.size() % 512, 0u);
  }
  EXPECT_EQ(checkpoint.Find("shard_10.weight").file, checkpoint.Find("shard_1.weight").file);
  EXPECT_NE(checkpoint.Find("shard_2.weight").file, checkpoint.Find("shard_1.weight").file);
  // A reader in text order of the names would give other labels.
  EXPECT_LT(&checkpoint.Find("shard_10.weight"), &checkpoint.Find("shard_2.weight"));
}

TEST(CheckpointTest, B08_OneTensorInsteadOfShardsIsRead) {
  CheckpointSpec spec = AwkwardShards(DType::kBf16);
  spec.layout = testing::Layout::kSingleTensor;
  const auto opened = testing::Open(spec);
  ASSERT_THAT(opened, IsOk());
  ExpectEveryLabel(**opened);
}

TEST(CheckpointTest, B08_ShorterLastShardAndUnequalShardsAreRead) {
  CheckpointSpec spec = AwkwardShards(DType::kBf16);
  spec.shards = 9;  // 8 shards of 29 rows and one of 24
  const auto opened = testing::Open(spec);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ((*opened)->layers()[0].table.shards.back().rows, 24u);
  ExpectEveryLabel(**opened);

  TestCheckpoint unequal = MakeCheckpoint(AwkwardShards(DType::kBf16));
  testing::TestTensor& first = unequal.Find("shard_0.weight");
  testing::TestTensor& second = unequal.Find("shard_1.weight");
  second.bytes = first.bytes.substr(first.bytes.size() - 32) + second.bytes;
  first.bytes.resize(first.bytes.size() - 32);
  first.shape[0] -= 2;
  second.shape[0] += 2;
  const auto opened_unequal = testing::Open(unequal);
  ASSERT_THAT(opened_unequal, IsOk());
  ExpectEveryLabel(**opened_unequal);
}

TEST(CheckpointTest, B09_WithoutAnIndexTheHeadersAreScanned) {
  CheckpointSpec spec = AwkwardShards(DType::kF8E4M3);
  const auto with = testing::Open(spec);
  spec.index = testing::Index::kAbsent;
  const auto without = testing::Open(spec);
  ASSERT_THAT(with, IsOk());
  ASSERT_THAT(without, IsOk());
  ExpectEveryLabel(**without);
  EXPECT_EQ((*with)->ModelId({*(*with)->LoadWeights(LayerOrdinal(0))}),
            (*without)->ModelId({*(*without)->LoadWeights(LayerOrdinal(0))}));
}

TEST(CheckpointTest, FilesWithoutPleTensorsNeedNotExist) {
  TempDir dir;
  TestCheckpoint checkpoint = MakeCheckpoint({});
  checkpoint.files = 4;
  for (uint32_t file : {2u, 3u}) {
    checkpoint.tensors.push_back({absl::StrCat("model.layers.0.mlp.", file), "U8", {4}, "abcd", file});
  }
  checkpoint.Write(dir.path());
  std::filesystem::remove(dir / checkpoint.FileName(2));
  testing::WriteFile(dir / checkpoint.FileName(3), "not a safetensors file");
  const auto opened = testing::OpenDir(dir.path());
  ASSERT_THAT(opened, IsOk());
  EXPECT_THAT((*opened)->files(), SizeIs(2));
}

TEST(CheckpointTest, LinkedFilesOpenAsHubCachesKeepThem) {
  TempDir blobs;
  TempDir dir;
  MakeCheckpoint({}).Write(blobs.path());
  for (const auto& entry : std::filesystem::directory_iterator(blobs.path())) {
    std::filesystem::create_symlink(entry.path(), dir / entry.path().filename().string());
  }
  EXPECT_THAT(testing::OpenDir(dir.path()), IsOk());
}

TEST(CheckpointTest, BothPrefixesAreRead) {
  CheckpointSpec spec = AwkwardShards(DType::kBf16);
  spec.prefix = testing::Prefix::kMultimodal;
  const auto opened = testing::Open(spec);
  ASSERT_THAT(opened, IsOk());
  ExpectEveryLabel(**opened);
}

TEST(CheckpointTest, B07_TheScaleIsFoundInAnyFileAndShape) {
  for (const bool last_file : {false, true}) {
    for (const bool scalar : {false, true}) {
      TestCheckpoint checkpoint = MakeCheckpoint(AwkwardShards(DType::kF8E4M3));
      testing::TestTensor scale = checkpoint.Find("weight_scale");
      checkpoint.Erase("weight_scale");
      if (scalar) scale.shape = {};
      scale.dtype = scalar ? "BF16" : "F32";
      if (scalar) scale.bytes = scale.bytes.substr(2);  // 0.5 in BF16
      scale.file = last_file ? 2 : 0;
      if (last_file) {
        checkpoint.tensors.push_back(scale);
      } else {
        checkpoint.tensors.insert(checkpoint.tensors.begin(), scale);
      }
      const auto opened = testing::Open(checkpoint);
      ASSERT_THAT(opened, IsOk());
      EXPECT_EQ((*opened)->layers()[0].table.scale, 0.5f);
      ExpectEveryLabel(**opened);
    }
  }
  EXPECT_EQ((*testing::Open(CheckpointSpec{}))->layers()[0].table.scale, 1.0f);
}

TEST(CheckpointTest, B10_TwoLayersHaveTheirOwnHashAndTable) {
  CheckpointSpec spec;
  spec.ple_layer_ids = {5, 2, 2};
  spec.num_hidden_layers = 5;
  const auto opened = testing::Open(spec);
  ASSERT_THAT(opened, IsOk());
  const auto& layers = (*opened)->layers();
  ASSERT_THAT(layers, SizeIs(2));
  EXPECT_EQ(layers[0].index, LayerIndex(1));
  EXPECT_EQ(layers[1].index, LayerIndex(4));
  EXPECT_THAT(layers[0].hash.head_sizes, ElementsAre(31, 37, 41, 43));
  EXPECT_THAT(layers[1].hash.head_sizes, ElementsAre(47, 53, 59, 61));
  EXPECT_NE(ReadRow(**opened, layers[0], 3), ReadRow(**opened, layers[1], 3));
  const auto first = (*opened)->LoadWeights(LayerOrdinal(0));
  const auto second = (*opened)->LoadWeights(LayerOrdinal(1));
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(first->key_value, second->key_value);
}

TEST(CheckpointTest, DenseWeightsAreKeyOverValue) {
  CheckpointSpec spec;
  spec.geometry.hidden_size = 24;
  const TestCheckpoint checkpoint = MakeCheckpoint(spec);
  const auto opened = testing::Open(checkpoint);
  ASSERT_THAT(opened, IsOk());
  const auto weights = (*opened)->LoadWeights(LayerOrdinal(0));
  ASSERT_THAT(weights, IsOk());
  const auto bytes = [](const std::vector<Bf16>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 2);
  };
  EXPECT_EQ(bytes(weights->key_value),
            checkpoint.Find("key_proj.weight").bytes + checkpoint.Find("value_proj.weight").bytes);
  EXPECT_EQ(bytes(weights->norm_key), checkpoint.Find("norm_key.weight").bytes);
  EXPECT_EQ(bytes(weights->norm_query), checkpoint.Find("norm_query.weight").bytes);
  EXPECT_EQ(bytes(weights->norm_conv), checkpoint.Find("norm_conv.weight").bytes);
  EXPECT_EQ(bytes(weights->conv), checkpoint.Find("conv1d.weight").bytes);
}

std::string IdOf(const TestCheckpoint& checkpoint) {
  const auto opened = testing::Open(checkpoint);
  if (!opened.ok()) return opened.status().ToString();
  std::vector<LayerWeights> weights;
  for (uint32_t p = 0; p < (*opened)->layers().size(); ++p) {
    weights.push_back(*(*opened)->LoadWeights(LayerOrdinal(p)));
  }
  return (*opened)->ModelId(weights);
}

TEST(CheckpointTest, ModelIdFollowsGeometryHashAndDenseWeightsAlone) {
  const CheckpointSpec spec;
  const std::string id = IdOf(MakeCheckpoint(spec));
  EXPECT_THAT(id, SizeIs(64));

  CheckpointSpec same = spec;
  same.row_values = testing::RowValues::kLabelled;
  same.shards = 7;
  same.files = 3;
  same.prefix = testing::Prefix::kMultimodal;
  EXPECT_EQ(IdOf(MakeCheckpoint(same)), id);

  for (const char* name : {"key_proj.weight", "value_proj.weight", "norm_key.weight", "norm_query.weight",
                           "norm_conv.weight", "conv1d.weight"}) {
    TestCheckpoint changed = MakeCheckpoint(spec);
    changed.Find(name).bytes.back() ^= 1;
    EXPECT_NE(IdOf(changed), id) << name;
  }
  std::vector<CheckpointSpec> others(5, spec);
  others[0].seed = 1;
  others[1].eos_token_id = 8;
  others[2].geometry.rms_norm_eps = 1e-5f;
  others[3].ple_layer_ids = {3};
  others[4].ngram_vocab_size_base = 32;
  for (const CheckpointSpec& other : others) {
    const std::string changed = IdOf(MakeCheckpoint(other));
    EXPECT_THAT(changed, SizeIs(64));
    EXPECT_NE(changed, id);
  }
}

TEST(CheckpointTest, AnOverrideReplacesTheEosToken) {
  TempDir dir;
  MakeCheckpoint({}).Write(dir.path());
  const auto opened = Checkpoint::Open({dir.path(), 9});
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ((*opened)->config().eos_token_id, 9u);
}

// A file of the released table's size, sparse, with a marker in its last row.
TEST(CheckpointTest, B04_TheLastRowOfA102GigabyteTableIsReached) {
  constexpr uint64_t kRows = 320001536;
  CheckpointSpec spec;
  spec.vocab_size = 248320;
  spec.eos_token_id = 248044;
  spec.ngram_vocab_size_base = 20000000;
  spec.geometry = {.hidden_size = 8, .hc_count = 1, .embed_dim = 2560, .ngram_size = 3, .heads_per_ngram = 8};
  spec.rows = 1;
  spec.shards = 1;
  spec.files = 1;
  spec.index = testing::Index::kAbsent;
  TestCheckpoint checkpoint = MakeCheckpoint(spec);
  const std::string name = checkpoint.Find("shard_0.weight").name;
  checkpoint.Erase("shard_0.weight");
  TempDir dir;
  checkpoint.Write(dir.path());

  const nlohmann::json header = {
      {name, {{"dtype", "BF16"}, {"shape", {kRows, 160}}, {"data_offsets", {0, kRows * 320}}}}};
  const std::string text = header.dump();
  const uint64_t length = text.size();
  const std::string path = dir / "table.safetensors";
  testing::WriteFile(path, std::string(reinterpret_cast<const char*>(&length), 8) + text);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(8 + length + kRows * 320)), 0) << std::strerror(errno);
  const std::string marker(320, 'M');
  ASSERT_EQ(::pwrite(fd.get(), marker.data(), 320, static_cast<off_t>(8 + length + 102400491200)), 320);

  const auto opened = testing::OpenDir(dir.path());
  ASSERT_THAT(opened, IsOk());
  const PleLayer& layer = (*opened)->layers()[0];
  EXPECT_EQ(layer.table.rows, kRows);
  EXPECT_EQ(ReadRow(**opened, layer, kRows - 1), marker);
  EXPECT_EQ(ReadRow(**opened, layer, kRows - 2), std::string(320, '\0'));
  // Row numbers or offsets cut to 32 bits would not reach the marker.
  EXPECT_NE(layer.table.Locate(RowId(kRows - 1)).offset, (8 + length + 102400491200) & 0xFFFFFFFF);
}

}  // namespace
}  // namespace pleiad
