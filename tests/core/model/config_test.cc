#include "core/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

json Toy() { return testing::MakeCheckpoint({}).config; }

absl::StatusOr<ModelConfig> ParseWith(const char* field, const json& value) {
  json config = Toy();
  config[field] = value;
  return ParseModelConfig(config.dump());
}

absl::StatusOr<ModelConfig> ParseWithout(const char* field) {
  json config = Toy();
  config.erase(field);
  return ParseModelConfig(config.dump());
}

TEST(ConfigTest, ReadsTheReleasedModel) {
  const json text = {{"hidden_size", 2560},  {"hc_count", 4},           {"ple_layer_ids", {2}},
                     {"vocab_size", 248320}, {"num_hidden_layers", 48}, {"eos_token_id", 248044},
                     {"rms_norm_eps", 1e-6}, {"split_ngram_parts", 512}};
  const json root = {{"text_config", text}, {"image_token_id", 248056}, {"video_token_id", 248057}, {"vocab_size", 5}};
  const auto config = ParseModelConfig(root.dump());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->geometry.channels(), 10240u);
  EXPECT_EQ(config->geometry.embed_dim, 2560u);
  EXPECT_EQ(config->geometry.heads(), 16u);
  EXPECT_EQ(config->geometry.head_dim(), 160u);
  EXPECT_EQ(config->geometry.state_len(), 9u);
  EXPECT_EQ(config->geometry.aux_bytes(), 368652u);
  EXPECT_EQ(config->geometry.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config->vocab_size, 248320u);
  EXPECT_EQ(config->eos_token_id, 248044u);
  EXPECT_EQ(config->seed, 1234u);
  EXPECT_EQ(config->ngram_vocab_size_base, 20000000u);
  EXPECT_EQ(config->ngram_vocab_divisor, 128u);
  EXPECT_EQ(config->image_token_id, 248056u);
  EXPECT_EQ(config->video_token_id, 248057u);
  EXPECT_THAT(config->ple_layers, ElementsAre(LayerIndex(1)));
}

TEST(ConfigTest, AbsentAndNullFieldsTakeTheirDefaults) {
  for (const char* field : {"hc_count", "ple_conv_kernel_size", "rms_norm_eps", "seed"}) {
    const auto absent = ParseWithout(field);
    const auto null = ParseWith(field, nullptr);
    ASSERT_THAT(absent, IsOk());
    ASSERT_THAT(null, IsOk());
    EXPECT_EQ(absent->geometry.hc_count, 4u);
    EXPECT_EQ(absent->geometry.conv_kernel_size, 4u);
    EXPECT_EQ(null->geometry.rms_norm_eps, 1e-6f);
    EXPECT_EQ(null->seed, 1234u);
  }
  json config = Toy();
  config["hidden_size"] = 48;
  config.erase("ple_embed_dim");
  EXPECT_EQ(ParseModelConfig(config.dump())->geometry.embed_dim, 48u);
  EXPECT_FALSE(ParseWithout("image_token_id")->image_token_id.has_value());
}

TEST(ConfigTest, RequiredFieldsAreRefusedByNameWhenAbsent) {
  for (const char* field : {"hidden_size", "vocab_size", "num_hidden_layers", "eos_token_id"}) {
    EXPECT_THAT(ParseWithout(field), FailsWith(kInvalid, std::string(field) + " is absent"));
    EXPECT_THAT(ParseWith(field, nullptr), FailsWith(kInvalid, std::string(field) + " is absent"));
  }
}

TEST(ConfigTest, B03_AnEosListMeansItsFirstEntry) {
  EXPECT_EQ(ParseWith("eos_token_id", json::array({7, 9}))->eos_token_id, 7u);
  EXPECT_EQ(ParseWith("eos_token_id", json::array({9, 7}))->eos_token_id, 9u);
  EXPECT_THAT(ParseWith("eos_token_id", json::array()), FailsWith(kInvalid, "eos_token_id is []"));
  EXPECT_THAT(ParseWith("eos_token_id", json::array({"7"})), FailsWith(kInvalid, "eos_token_id is \"7\""));
  EXPECT_THAT(ParseWith("eos_token_id", -1), FailsWith(kInvalid, "eos_token_id is -1"));
  EXPECT_THAT(ParseWith("eos_token_id", 1000),
              FailsWith(kInvalid, "eos_token_id is 1000; it must be below vocab_size"));
}

TEST(ConfigTest, AnOverrideReplacesTheEosOfTheFile) {
  json config = Toy();
  EXPECT_EQ(ParseModelConfig(config.dump(), 9)->eos_token_id, 9u);
  config.erase("eos_token_id");
  EXPECT_EQ(ParseModelConfig(config.dump(), 9)->eos_token_id, 9u);
  EXPECT_THAT(ParseModelConfig(config.dump(), 1000), FailsWith(kInvalid, "eos_token_id is 1000"));
}

TEST(ConfigTest, EosMayStandBesideANestedTextConfig) {
  json text = Toy();
  text.erase("eos_token_id");
  EXPECT_EQ(ParseModelConfig(json({{"text_config", text}, {"eos_token_id", {5}}}).dump())->eos_token_id, 5u);
  text["eos_token_id"] = 6;
  EXPECT_EQ(ParseModelConfig(json({{"text_config", text}, {"eos_token_id", 5}}).dump())->eos_token_id, 6u);
}

TEST(ConfigTest, B03_AbsentSeedIs1234AndZeroIsReal) {
  EXPECT_EQ(ParseWithout("seed")->seed, 1234u);
  EXPECT_EQ(ParseWith("seed", 0)->seed, 0u);
  EXPECT_EQ(ParseWith("seed", ~uint64_t{0})->seed, ~uint64_t{0});
}

TEST(ConfigTest, B03_SizesOutOfBoundsAreRefusedByName) {
  struct Case {
    const char* field;
    json value;
  };
  for (const Case& c : {Case{"ngram_size", 1},
                        Case{"ngram_size", 0},
                        Case{"ngram_size", 9},
                        Case{"ngram_size", 1000},
                        Case{"heads_per_ngram", 0},
                        Case{"heads_per_ngram", 65},
                        Case{"ple_embed_dim", 0},
                        Case{"ple_embed_dim", 30},
                        Case{"ple_embed_dim", 1 << 17},
                        Case{"vocab_size", 0},
                        Case{"vocab_size", 0x80000000u},
                        Case{"hidden_size", 0},
                        Case{"hidden_size", 1 << 17},
                        Case{"hc_count", 0},
                        Case{"hc_count", 65},
                        Case{"ple_conv_kernel_size", 0},
                        Case{"ple_conv_kernel_size", 65},
                        Case{"num_hidden_layers", 0},
                        Case{"num_hidden_layers", 5000},
                        Case{"ngram_vocab_size_base", 0},
                        Case{"ngram_vocab_size_base", 1},
                        Case{"ngram_vocab_size_base", uint64_t{1} << 41},
                        Case{"make_ngram_vocab_size_divisible_by", 0},
                        Case{"make_ngram_vocab_size_divisible_by", 1 << 21},
                        Case{"rms_norm_eps", 0.0},
                        Case{"rms_norm_eps", -1e-6},
                        Case{"rms_norm_eps", 1e-60},
                        Case{"rms_norm_eps", 1e300},
                        Case{"rms_norm_eps", 2},
                        Case{"rms_norm_eps", "1e-6"},
                        Case{"image_token_id", 1000},
                        Case{"video_token_id", -3}}) {
    json config = Toy();
    config["ple_layer_ids"] = {1};
    config[c.field] = c.value;
    EXPECT_THAT(ParseModelConfig(config.dump()), FailsWith(kInvalid, std::string(c.field))) << c.value;
  }
}

TEST(ConfigTest, IntegersOfAnotherTypeAreRefusedByName) {
  for (const char* field : {"hidden_size", "hc_count", "ple_embed_dim", "ple_conv_kernel_size", "ngram_size",
                            "heads_per_ngram", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "seed",
                            "vocab_size", "num_hidden_layers", "image_token_id"}) {
    for (const char* value : {"3.0", "-1", "\"3\"", "true", "[3]", "{}", "1e3", "18446744073709551616", "1e400"}) {
      json config = Toy();
      config[field] = "@";
      std::string text = config.dump();
      text.replace(text.find("\"@\""), 3, value);
      const auto parsed = ParseModelConfig(text);
      EXPECT_EQ(parsed.status().code(), kInvalid) << field << " " << value;
    }
    EXPECT_THAT(ParseWith(field, 3.5), FailsWith(kInvalid, std::string(field) + " is 3.5"));
  }
}

TEST(ConfigTest, ProductsAreBounded) {
  json config = Toy();
  config["hc_count"] = 64;
  config["hidden_size"] = 65536;
  EXPECT_THAT(ParseModelConfig(config.dump()), FailsWith(kInvalid, "hc_count * hidden_size is 4194304"));
  config["hc_count"] = 16;
  config["ple_conv_kernel_size"] = 64;
  config["ngram_size"] = 8;
  config["ple_embed_dim"] = 14;
  EXPECT_THAT(ParseModelConfig(config.dump()), FailsWith(kInvalid, "bytes of carry"));
}

TEST(ConfigTest, B10_LayerIdsAreOneBasedSortedAndWithoutDuplicates) {
  EXPECT_THAT(ParseWith("ple_layer_ids", {2})->ple_layers, ElementsAre(LayerIndex(1)));
  json config = Toy();
  config["num_hidden_layers"] = 5;
  config["ple_layer_ids"] = {5, 2, 2};
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_THAT(parsed, IsOk());
  EXPECT_THAT(parsed->ple_layers, ElementsAre(LayerIndex(1), LayerIndex(4)));
  EXPECT_EQ(parsed->Ordinal(LayerIndex(1)), LayerOrdinal(0));
  EXPECT_EQ(parsed->Ordinal(LayerIndex(4)), LayerOrdinal(1));
  EXPECT_EQ(parsed->Ordinal(LayerIndex(2)), std::nullopt);
  EXPECT_EQ(parsed->Ordinal(LayerIndex(5)), std::nullopt);
}

TEST(ConfigTest, B10_LayerIdsOutsideTheModelAreRefused) {
  for (const char* ids : {"[0]", "[5]", "[2,5]", "[-1]", "[2.0]", "[\"2\"]", "2", "[[2]]", "[18446744073709551615]"}) {
    EXPECT_THAT(ParseWith("ple_layer_ids", json::parse(ids)), FailsWith(kInvalid, "ple_layer_ids is ")) << ids;
  }
}

TEST(ConfigTest, AModelWithoutPleLayersIsRefused) {
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(ParseWithout("ple_layer_ids"), FailsWith(kPrecondition, "ple_layer_ids"));
  EXPECT_THAT(ParseWith("ple_layer_ids", json::array()), FailsWith(kPrecondition, "ple_layer_ids"));
}

TEST(ConfigTest, ValidateRefusesLayersOutOfOrder) {
  ModelConfig config = *ParseModelConfig(Toy().dump());
  EXPECT_THAT(config.Validate(), IsOk());
  config.ple_layers = {LayerIndex(2), LayerIndex(1)};
  EXPECT_THAT(config.Validate(), FailsWith(kInvalid, "ple_layer_ids"));
  config.ple_layers = {LayerIndex(1), LayerIndex(1)};
  EXPECT_THAT(config.Validate(), FailsWith(kInvalid, "ple_layer_ids"));
  config.ple_layers = {LayerIndex(4)};
  EXPECT_THAT(config.Validate(), FailsWith(kInvalid, "ple_layer_ids"));
}

TEST(ConfigTest, HostileDocumentsAreRefused) {
  EXPECT_THAT(ParseModelConfig(""), FailsWith(kInvalid, "not JSON"));
  EXPECT_THAT(ParseModelConfig("{"), FailsWith(kInvalid, "not JSON"));
  EXPECT_THAT(ParseModelConfig("{} {}"), FailsWith(kInvalid, "not JSON"));
  EXPECT_THAT(ParseModelConfig("[]"), FailsWith(kInvalid, "an object"));
  EXPECT_THAT(ParseModelConfig("{\"text_config\": 3}"), FailsWith(kInvalid, "text_config"));
  EXPECT_THAT(ParseModelConfig("{\"a\": \"\xff\"}"), FailsWith(kInvalid, "not JSON"));
  EXPECT_THAT(ParseModelConfig("{\"seed\": 1, \"seed\": 2}"), FailsWith(kInvalid, "given twice"));
  EXPECT_THAT(ParseModelConfig(std::string(1000000, '[')), FailsWith(kInvalid, "nested deeper"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ParseModelConfig(objects), FailsWith(kInvalid, "nested deeper"));
}

}  // namespace
}  // namespace pleiad
