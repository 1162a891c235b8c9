// Row ids and rows of the checkpoints written by the reference, bit by bit.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/ngram_hasher.h"
#include "core/model/safetensors.h"
#include "tests/core/model/checkpoint_fixture.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using testing::IsOk;

struct GoldenCase {
  const char* name;
  uint32_t layer_id;
};

class GoldenIdsTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    dir_ = absl::StrCat(PLEIAD_SOURCE_DIR, "/tests/golden/", GetParam().name);
    auto opened = testing::OpenDir(dir_);
    ASSERT_THAT(opened, IsOk());
    checkpoint_ = *std::move(opened);
    bytes_ = testing::ReadFile(dir_ + "/golden.safetensors");
    const UniqueFd fd(::open((dir_ + "/golden.safetensors").c_str(), O_RDONLY));
    auto header = ReadSafetensorsHeader(fd.get(), bytes_.size(), "golden.safetensors");
    ASSERT_THAT(header, IsOk());
    header_ = *std::move(header);
  }

  template <typename T>
  std::vector<T> Golden(const std::string& name) const {
    const TensorInfo& info = header_.at(absl::StrCat("layer", GetParam().layer_id, ".", name));
    std::vector<T> values(info.bytes / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + info.offset, info.bytes);
    return values;
  }

  std::vector<RowId> HashGoldenTokens(uint32_t fill) const {
    const ModelConfig& config = checkpoint_->config();
    const PleLayer& layer = checkpoint_->layers()[0];
    const NgramHasher hasher(layer.hash, config.geometry.ngram_size, config.geometry.heads_per_ngram,
                             config.eos_token_id);
    const auto tokens = Golden<uint32_t>("tokens");
    std::vector<RowId> ids(tokens.size() * hasher.heads());
    hasher.Hash(std::vector<uint32_t>(hasher.context_len(), fill), tokens, absl::MakeSpan(ids));
    return ids;
  }

  std::string dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::string bytes_;
  SafetensorsHeader header_;
};

TEST_P(GoldenIdsTest, RowIdsAreExact) {
  const auto expected = Golden<uint64_t>("ngram_ids");
  const std::vector<RowId> ids = HashGoldenTokens(checkpoint_->config().eos_token_id);
  ASSERT_EQ(ids.size(), expected.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i].value(), expected[i]) << "token and head " << i;
}

TEST_P(GoldenIdsTest, HashBuffersOfTheFilesAreTheDerivedOnes) {
  const auto meta = nlohmann::json::parse(testing::ReadFile(dir_ + "/meta.json"));
  const auto& constants = meta["layers"][absl::StrCat(GetParam().layer_id)];
  const PleLayer& layer = checkpoint_->layers()[0];
  EXPECT_EQ(constants["multipliers"].get<std::vector<uint64_t>>(), layer.hash.multipliers);
  EXPECT_EQ(constants["vocab_sizes"].get<std::vector<uint64_t>>(), layer.hash.head_sizes);
  EXPECT_EQ(constants["offsets"].get<std::vector<uint64_t>>(), layer.hash.head_offsets);
  EXPECT_EQ(constants["rows"].get<uint64_t>(), layer.table.rows);
  EXPECT_EQ(layer.table.rows, layer.hash.padded_rows);
  EXPECT_EQ(constants["head_dim"].get<uint32_t>(), layer.table.head_dim);
}

TEST_P(GoldenIdsTest, GatheredRowsAreTheReferenceEmbeddings) {
  const auto expected = Golden<float>("embeddings");
  const PleLayer& layer = checkpoint_->layers()[0];
  std::vector<float> values;
  for (const RowId id : HashGoldenTokens(checkpoint_->config().eos_token_id)) {
    const std::string row = testing::ReadRow(*checkpoint_, layer, id.value());
    for (size_t i = 0; i + 1 < row.size(); i += 2) {
      Bf16 bits = 0;
      std::memcpy(&bits, row.data() + i, 2);
      values.push_back(Bf16ToFloat(bits));
    }
  }
  EXPECT_EQ(values, expected);
}

TEST_P(GoldenIdsTest, TheTestDataTellsAWrongFillApart) {
  const auto expected = Golden<uint64_t>("ngram_ids");
  // The first token is an EOS, so what stands before the start shows in its row.
  const std::vector<RowId> ids = HashGoldenTokens(0);
  EXPECT_NE(ids[0].value(), expected[0]);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenIdsTest,
                         ::testing::Values(GoldenCase{"tiny-n3h8", 2}, GoldenCase{"tiny-n2h4-wide-embed", 1}),
                         [](const auto& param) { return param.index == 0 ? "N3H8" : "N2H4WideEmbed"; });

}  // namespace
}  // namespace pleiad
