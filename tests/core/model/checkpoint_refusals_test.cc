// What Checkpoint::Open refuses, and that it says what, where and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/core/model/checkpoint_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using testing::AwkwardShards;
using testing::CheckpointSpec;
using testing::FailsWith;
using testing::IsOk;
using testing::MakeCheckpoint;
using testing::Open;
using testing::TempDir;
using testing::TestCheckpoint;
using testing::TestTensor;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TestCheckpoint Awkward(DType dtype = DType::kBf16) { return MakeCheckpoint(AwkwardShards(dtype)); }

void SetInteger(TestTensor* tensor, size_t index, int64_t value) {
  std::memcpy(tensor->bytes.data() + 8 * index, &value, 8);
}

void SetScale(TestCheckpoint* checkpoint, float value) {
  std::memcpy(checkpoint->Find("weight_scale").bytes.data(), &value, 4);
}

TEST(CheckpointRefusalsTest, MissingFolderConfigOrFile) {
  EXPECT_THAT(testing::OpenDir("/no/such/folder"), FailsWith(kNotFound, "/no/such/folder/config.json"));
  TempDir dir;
  const TestCheckpoint checkpoint = Awkward();
  checkpoint.Write(dir.path());
  std::filesystem::remove(dir / checkpoint.FileName(1));
  EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kNotFound, checkpoint.FileName(1)));
  std::filesystem::remove(dir / "config.json");
  EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kNotFound, "config.json"));
}

TEST(CheckpointRefusalsTest, AFolderInPlaceOfAFile) {
  TempDir dir;
  const TestCheckpoint checkpoint = Awkward();
  checkpoint.Write(dir.path());
  std::filesystem::remove(dir / checkpoint.FileName(1));
  std::filesystem::create_directory(dir / checkpoint.FileName(1));
  EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kInvalid, "not a regular file"));
}

TEST(CheckpointRefusalsTest, NoPleLayer) {
  TestCheckpoint checkpoint = Awkward();
  checkpoint.config.erase("ple_layer_ids");
  EXPECT_THAT(Open(checkpoint), FailsWith(absl::StatusCode::kFailedPrecondition, "ple_layer_ids"));
}

TEST(CheckpointRefusalsTest, B03_StoredHashBuffersThatDisagreePrintingBoth) {
  TestCheckpoint checkpoint = Awkward();
  SetInteger(&checkpoint.Find("layer_multipliers"), 1, 4902196785138503);
  const auto opened = Open(checkpoint);
  EXPECT_THAT(opened, FailsWith(kInvalid, "layer_multipliers"));
  EXPECT_THAT(opened, FailsWith(kInvalid, "stored [5159850018220775, 4902196785138503, 6891410296393783]"));
  EXPECT_THAT(opened, FailsWith(kInvalid, "derived [5159850018220775, 4902196785138501, 6891410296393783]"));

  TestCheckpoint seedless = Awkward();
  seedless.config["seed"] = 0;
  EXPECT_THAT(Open(seedless), FailsWith(kInvalid, "derived [1032908777371477"));
}

TEST(CheckpointRefusalsTest, B04_HeadSizesAndOffsetsOutsideTheTable) {
  TestCheckpoint zero = Awkward();
  SetInteger(&zero.Find("ngram_heads_vocab_sizes"), 2, 0);
  EXPECT_THAT(Open(zero), FailsWith(kInvalid, "ngram_heads_vocab_sizes"));
  for (const int64_t offset : {int64_t{-1}, int64_t{256}, int64_t{1} << 31, std::numeric_limits<int64_t>::min()}) {
    TestCheckpoint moved = Awkward();
    SetInteger(&moved.Find("ngram_heads_offsets"), 3, offset);
    EXPECT_THAT(Open(moved), FailsWith(kInvalid, absl::StrCat("stored [0, 31, 68, ", offset, "]")));
  }
}

TEST(CheckpointRefusalsTest, B04_FewerRowsThanTheHashCanName) {
  CheckpointSpec spec = AwkwardShards(DType::kBf16);
  spec.shards = 1;
  spec.rows = 151;
  EXPECT_THAT(Open(spec), FailsWith(kInvalid, "has 151 rows in 1 tensors; the hash can name 152"));
  spec.rows = 152;
  EXPECT_THAT(Open(spec), IsOk());
}

TEST(CheckpointRefusalsTest, B05_MixedOrUnknownDTypesAndWrongColumns) {
  TestCheckpoint mixed = Awkward();
  mixed.Find("shard_3.weight").dtype = "F32";
  mixed.Find("shard_3.weight").bytes += mixed.Find("shard_3.weight").bytes;
  EXPECT_THAT(Open(mixed), FailsWith(kInvalid, "shard_3.weight is F32"));

  TestCheckpoint unknown = Awkward();
  unknown.Find("shard_0.weight").dtype = "F16";
  EXPECT_THAT(Open(unknown), FailsWith(kInvalid, "shard_0.weight is F16; rows must be BF16, F32 or F8_E4M3"));

  TestCheckpoint wide = Awkward();
  wide.Find("shard_2.weight").shape = {8, 16};
  EXPECT_THAT(Open(wide), FailsWith(kInvalid, "shard_2.weight has shape [8, 16]"));
  TestCheckpoint flat = Awkward();
  flat.Find("shard_2.weight").shape = {128};
  EXPECT_THAT(Open(flat), FailsWith(kInvalid, "shard_2.weight has shape [128]"));
  TestCheckpoint empty = Awkward();
  empty.Find("shard_2.weight").shape = {0, 8};
  empty.Find("shard_2.weight").bytes.clear();
  EXPECT_THAT(Open(empty), FailsWith(kInvalid, "shard_2.weight has shape [0, 8]"));
}

TEST(CheckpointRefusalsTest, B07_ScaleMissingUselessMisshapenOrNotWanted) {
  TestCheckpoint missing = Awkward(DType::kF8E4M3);
  missing.Erase("weight_scale");
  EXPECT_THAT(Open(missing), FailsWith(kInvalid, "weight_scale is missing"));

  for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    TestCheckpoint useless = Awkward(DType::kF8E4M3);
    SetScale(&useless, value);
    EXPECT_THAT(Open(useless), FailsWith(kInvalid, "it must be finite and not 0")) << value;
  }

  TestCheckpoint per_row = Awkward(DType::kF8E4M3);
  per_row.Find("weight_scale").shape = {128};
  per_row.Find("weight_scale").bytes.assign(512, '?');
  EXPECT_THAT(Open(per_row), FailsWith(kInvalid, "weight_scale has shape [128]"));

  TestCheckpoint half = Awkward(DType::kF8E4M3);
  half.Find("weight_scale").dtype = "I32";
  EXPECT_THAT(Open(half), FailsWith(kInvalid, "weight_scale is I32"));

  TestCheckpoint elsewhere = Awkward(DType::kF8E4M3);
  elsewhere.Find("weight_scale").name += "_inv";
  EXPECT_THAT(Open(elsewhere), FailsWith(kInvalid, "weight_scale_inv is unknown"));

  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    TestCheckpoint unwanted = Awkward(dtype);
    TestTensor scale = Awkward(DType::kF8E4M3).Find("weight_scale");
    unwanted.tensors.push_back(scale);
    EXPECT_THAT(Open(unwanted), FailsWith(kInvalid, absl::StrCat("weight_scale stands beside ", Name(dtype))));
  }
}

TEST(CheckpointRefusalsTest, B08_MissingShardIsNamed) {
  TestCheckpoint checkpoint = Awkward();
  checkpoint.Erase("shard_5.weight");
  EXPECT_THAT(Open(checkpoint), FailsWith(kInvalid, "shard 5 is missing"));
  TestCheckpoint first = Awkward();
  first.Erase("shard_0.weight");
  EXPECT_THAT(Open(first), FailsWith(kInvalid, "shard 0 is missing"));
}

TEST(CheckpointRefusalsTest, B08_ShardInTwoFilesIsRefusedWithAndWithoutAnIndex) {
  for (const auto index : {testing::Index::kWritten, testing::Index::kAbsent}) {
    TestCheckpoint checkpoint = Awkward();
    checkpoint.index = index;
    TestTensor copy = checkpoint.Find("shard_3.weight");
    copy.file = 0;
    checkpoint.tensors.push_back(copy);
    EXPECT_THAT(Open(checkpoint), FailsWith(kInvalid, "shard_3.weight lies in two files"));
  }
}

TEST(CheckpointRefusalsTest, B08_UnknownSpellingSaysThatNothingWasFound) {
  TestCheckpoint checkpoint = Awkward();
  for (TestTensor& tensor : checkpoint.tensors) {
    const size_t at = tensor.name.find("shard_");
    if (at != std::string::npos) tensor.name.replace(at, 6, "part-");
  }
  EXPECT_THAT(Open(checkpoint), FailsWith(kInvalid,
                                          "no shards found, expected name "
                                          "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight"));
  for (const char* number : {"03", "+3", " 3", "3x", "", "4294967299", "0x3"}) {
    TestCheckpoint padded = Awkward();
    TestTensor& shard = padded.Find("shard_3.weight");
    shard.name.replace(shard.name.find("shard_3"), 7, absl::StrCat("shard_", number));
    EXPECT_THAT(Open(padded), FailsWith(kInvalid, "is unknown; expected names are")) << number;
  }
}

TEST(CheckpointRefusalsTest, B08_OneTensorBesideShards) {
  TestCheckpoint checkpoint = Awkward();
  TestTensor whole = checkpoint.Find("shard_0.weight");
  whole.name.replace(whole.name.find("shard_0.weight"), 14, "weight");
  checkpoint.tensors.push_back(whole);
  EXPECT_THAT(Open(checkpoint), FailsWith(kInvalid, "stands beside 16 shards"));
}

TEST(CheckpointRefusalsTest, B09_AFileOneByteShort) {
  for (const auto index : {testing::Index::kWritten, testing::Index::kAbsent}) {
    TempDir dir;
    TestCheckpoint checkpoint = Awkward();
    checkpoint.index = index;
    checkpoint.Write(dir.path());
    const std::string path = dir / checkpoint.FileName(2);
    const uint64_t full = std::filesystem::file_size(path);
    ASSERT_THAT(testing::OpenDir(dir.path()), IsOk());
    std::filesystem::resize_file(path, full - 1);
    const auto opened = testing::OpenDir(dir.path());
    EXPECT_THAT(opened, FailsWith(kDataLoss, checkpoint.FileName(2)));
    EXPECT_THAT(opened, FailsWith(kDataLoss, absl::StrCat("needs ", full, " bytes, the file has ", full - 1)));
  }
}

TEST(CheckpointRefusalsTest, B09_WeightsOfAFileCutAfterOpening) {
  TempDir dir;
  const TestCheckpoint checkpoint = Awkward();
  checkpoint.Write(dir.path());
  const auto opened = testing::OpenDir(dir.path());
  ASSERT_THAT(opened, IsOk());
  std::filesystem::resize_file(dir / checkpoint.FileName(0), 100);
  EXPECT_THAT((*opened)->LoadWeights(LayerOrdinal(0)), FailsWith(kDataLoss, checkpoint.FileName(0)));
}

TEST(CheckpointRefusalsTest, B10_LayersOfDifferentRowDTypes) {
  CheckpointSpec spec;
  spec.ple_layer_ids = {2, 4};
  TestCheckpoint checkpoint = MakeCheckpoint(spec);
  for (TestTensor& tensor : checkpoint.tensors) {
    if (tensor.name.find("layers.3.ple.ple_embedding.ngram_embedding.shard_") == std::string::npos) continue;
    tensor.dtype = "F32";
    tensor.bytes += tensor.bytes;
  }
  EXPECT_THAT(Open(checkpoint), FailsWith(kInvalid, "all PLE layers must have one row dtype"));
}

TEST(CheckpointRefusalsTest, B10_ALayerWithoutTensorsOrWithTwoPrefixes) {
  TestCheckpoint none = Awkward();
  none.config["ple_layer_ids"] = {2, 3};
  EXPECT_THAT(Open(none), FailsWith(kInvalid, "ple_layer_ids names 3 (one-based): no tensor has the prefix"));

  TestCheckpoint both = Awkward();
  TestTensor copy = both.Find("norm_key.weight");
  copy.name = "model.language_model.layers.1.ple.norm_key.weight";
  both.tensors.push_back(copy);
  EXPECT_THAT(Open(both), FailsWith(kInvalid, "one prefix, not both"));
}

TEST(CheckpointRefusalsTest, EveryTensorMissingOrMisshapenIsNamed) {
  for (const char* name :
       {"key_proj.weight", "value_proj.weight", "norm_key.weight", "norm_query.weight", "norm_conv.weight",
        "conv1d.weight", "layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
    TestCheckpoint missing = Awkward();
    missing.Erase(name);
    EXPECT_THAT(Open(missing), FailsWith(kInvalid, absl::StrCat(name, " is missing")));

    TestCheckpoint misshapen = Awkward();
    misshapen.Find(name).shape.push_back(1);
    EXPECT_THAT(Open(misshapen), FailsWith(kInvalid, absl::StrCat(name, " has shape")));

    TestCheckpoint other = Awkward();
    other.Find(name).dtype = other.Find(name).dtype == "BF16" ? "F16" : "U64";
    EXPECT_THAT(Open(other), FailsWith(kInvalid, absl::StrCat(name, " is ", other.Find(name).dtype)));
  }
}

TEST(CheckpointRefusalsTest, IndexEntriesThatLeaveTheFolder) {
  for (const nlohmann::json& place :
       {nlohmann::json("../model.safetensors"), nlohmann::json("/etc/passwd"), nlohmann::json("sub/model.safetensors"),
        nlohmann::json(".."), nlohmann::json("."), nlohmann::json(""), nlohmann::json(3), nlohmann::json(nullptr),
        nlohmann::json(std::string("a\0b", 3))}) {
    TempDir dir;
    Awkward().Write(dir.path());
    const std::string path = dir / "model.safetensors.index.json";
    auto index = nlohmann::json::parse(testing::ReadFile(path));
    index["weight_map"]["lm_head.weight"] = place;
    testing::WriteFile(path, index.dump());
    EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kInvalid, "weight_map places tensor \"lm_head.weight\" in"));
  }
}

TEST(CheckpointRefusalsTest, AWrongIndexIsNotPassedOver) {
  TempDir dir;
  Awkward().Write(dir.path());
  const std::string path = dir / "model.safetensors.index.json";
  for (const char* text :
       {"", "{", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": \"b\", \"a\": \"c\"}}"}) {
    testing::WriteFile(path, text);
    EXPECT_EQ(testing::OpenDir(dir.path()).status().code(), kInvalid) << text;
  }
}

TEST(CheckpointRefusalsTest, AnIndexThatNamesATensorTheFileLacks) {
  TempDir dir;
  const TestCheckpoint checkpoint = Awkward();
  checkpoint.Write(dir.path());
  const std::string path = dir / "model.safetensors.index.json";
  auto index = nlohmann::json::parse(testing::ReadFile(path));
  index["weight_map"][checkpoint.Find("shard_3.weight").name] = checkpoint.FileName(0);
  testing::WriteFile(path, index.dump());
  EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kInvalid, "shard_3.weight is not in the file"));
}

TEST(CheckpointRefusalsTest, B08_AShardTheIndexLeavesOutIsNamed) {
  TempDir dir;
  const TestCheckpoint checkpoint = Awkward();
  checkpoint.Write(dir.path());
  const std::string path = dir / "model.safetensors.index.json";
  auto index = nlohmann::json::parse(testing::ReadFile(path));
  index["weight_map"].erase(checkpoint.Find("shard_5.weight").name);
  testing::WriteFile(path, index.dump());
  EXPECT_THAT(testing::OpenDir(dir.path()), FailsWith(kInvalid, "shard 5 is missing"));
}

}  // namespace
}  // namespace pleiad
