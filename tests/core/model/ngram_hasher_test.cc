#include "core/model/ngram_hasher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "core/model/config.h"
#include "tests/core/model/naive_hash.h"
#include "tests/support/checkpoint_writer.h"

namespace pleiad {
namespace {

using testing::CheckpointSpec;
using ::testing::ElementsAre;
using testing::HashMistakes;
using testing::HashRecipe;
using testing::NaiveHash;
using testing::NoMistake;

using Ids = std::vector<std::vector<uint64_t>>;

const std::vector<uint32_t> kToyTokens = {11, 22, 33, 7, 44, 55, 66};
const Ids kToyIds = {{6, 41, 72, 124},  {20, 53, 83, 128}, {21, 42, 99, 122}, {3, 42, 105, 142},
                     {20, 43, 99, 126}, {29, 62, 75, 129}, {27, 53, 85, 137}};
const HashRecipe kToyRecipe = {
    {5159850018220775, 4902196785138501, 6891410296393783}, {31, 37, 41, 43}, {0, 31, 68, 109}, 2, 7};

NgramHasher MakeHasher(const ModelConfig& config, uint32_t ordinal = 0) {
  return NgramHasher(DeriveHashConstants(config, LayerOrdinal(ordinal)), config.geometry.ngram_size,
                     config.geometry.heads_per_ngram, config.eos_token_id);
}

HashRecipe RecipeOf(const NgramHasher& hasher, const ModelConfig& config) {
  const HashConstants& c = hasher.constants();
  return {c.multipliers, c.head_sizes, c.head_offsets, config.geometry.heads_per_ngram, config.eos_token_id};
}

Ids HashAfter(const NgramHasher& hasher, const std::vector<uint32_t>& history, const std::vector<uint32_t>& tokens) {
  std::vector<RowId> flat(tokens.size() * hasher.heads());
  hasher.Hash(history, tokens, absl::MakeSpan(flat));
  Ids ids(tokens.size());
  for (size_t i = 0; i < flat.size(); ++i) ids[i / hasher.heads()].push_back(flat[i].value());
  return ids;
}

Ids HashFresh(const NgramHasher& hasher, const ModelConfig& config, const std::vector<uint32_t>& tokens) {
  return HashAfter(hasher, std::vector<uint32_t>(hasher.context_len(), config.eos_token_id), tokens);
}

ModelConfig ToyConfig() { return testing::ToModelConfig(CheckpointSpec{}); }

TEST(NgramHasherTest, B01_ToySequenceGivesTheKnownRowIds) {
  EXPECT_EQ(HashFresh(MakeHasher(ToyConfig()), ToyConfig(), kToyTokens), kToyIds);
}

TEST(NgramHasherTest, B01_BrokenRecipesAreToldApartByTheToySequence) {
  EXPECT_EQ(NaiveHash(kToyRecipe, kToyTokens, NoMistake(kToyRecipe)), kToyIds);

  const Ids fill_zero = NaiveHash(kToyRecipe, kToyTokens, {0, 7, false});
  EXPECT_NE(fill_zero, kToyIds);
  EXPECT_THAT(fill_zero[0], ElementsAre(17, 54, 93, 119));

  Ids no_reset = NaiveHash(kToyRecipe, kToyTokens, {7, 7, true});
  EXPECT_THAT(no_reset[4], ElementsAre(20, 43, 84, 115));
  no_reset[4] = kToyIds[4];
  EXPECT_EQ(no_reset, kToyIds) << "with N = 3 a missing reset shows only after the EOS";

  EXPECT_NE(NaiveHash(kToyRecipe, kToyTokens, {7, 0, false}), kToyIds);
}

TEST(NgramHasherTest, B02_InVocabularyProductsKeepTheSignBitClear) {
  // Then signed and unsigned remainders agree, which for the id -1 they do not.
  for (const uint32_t vocab : {1u, 2u, 1000u, 248320u, 0x7FFFFFFFu}) {
    CheckpointSpec spec;
    spec.vocab_size = vocab;
    spec.eos_token_id = 0;
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1234}, ~uint64_t{0}}) {
      spec.seed = seed;
      const ModelConfig config = testing::ToModelConfig(spec);
      for (const uint64_t m : DeriveHashConstants(config, LayerOrdinal(0)).multipliers) {
        EXPECT_EQ(m % 2, 1u);
        const auto product = static_cast<unsigned __int128>(m) * (vocab - 1);
        EXPECT_LE(product, static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max()));
      }
    }
  }
  EXPECT_THAT(HashFresh(MakeHasher(ToyConfig()), ToyConfig(), {11, 22, 33}),
              ElementsAre(kToyIds[0], kToyIds[1], kToyIds[2]));
}

TEST(NgramHasherTest, B03_TokenNineDoesNotResetWhereEosIsSeven) {
  const ModelConfig config = ToyConfig();
  const NgramHasher hasher = MakeHasher(config);
  const Ids after_nine = HashFresh(hasher, config, {11, 22, 9, 44});
  const Ids after_eos = HashFresh(hasher, config, {11, 22, 7, 44});
  EXPECT_EQ(after_nine, NaiveHash(kToyRecipe, {11, 22, 9, 44}, NoMistake(kToyRecipe)));
  EXPECT_NE(after_nine[3], after_eos[3]);
}

TEST(NgramHasherTest, B03_SeedZeroGivesItsOwnKnownRow) {
  CheckpointSpec spec;
  spec.seed = 0;
  const ModelConfig config = testing::ToModelConfig(spec);
  EXPECT_THAT(HashFresh(MakeHasher(config), config, {11})[0], ElementsAre(11, 48, 104, 148));
}

TEST(NgramHasherTest, B10_SecondLayerHashesWithItsOwnConstants) {
  CheckpointSpec spec;
  spec.ple_layer_ids = {2, 4};
  const ModelConfig config = testing::ToModelConfig(spec);
  EXPECT_THAT(HashFresh(MakeHasher(config, 1), config, {11})[0], ElementsAre(23, 71, 113, 199));
}

TEST(NgramHasherTest, ReleasedModelGivesTheKnownRowIds) {
  CheckpointSpec spec;
  spec.vocab_size = 248320;
  spec.eos_token_id = 248044;
  spec.ngram_vocab_size_base = 20000000;
  spec.seed = std::nullopt;
  spec.geometry = {.hidden_size = 2560, .hc_count = 4, .embed_dim = 2560, .ngram_size = 3, .heads_per_ngram = 8};
  const ModelConfig config = testing::ToModelConfig(spec);
  const Ids ids = HashFresh(MakeHasher(config), config, {5, 7, 248044, 9});
  EXPECT_EQ(ids[0][0], 15389869u);
  EXPECT_EQ(ids[0][7], 155458159u);
  EXPECT_EQ(ids[0][8], 179763390u);
  EXPECT_EQ(ids[0][15], 315720898u);
  EXPECT_EQ(ids[3][0], 18043673u);
  EXPECT_EQ(ids[3][15], 307951937u);
}

TEST(NgramHasherTest, B04_NoTripleEverReachesAPaddingRow) {
  const ModelConfig config = ToyConfig();
  const NgramHasher hasher = MakeHasher(config);
  std::mt19937 random(4);
  std::uniform_int_distribution<uint32_t> token(0, config.vocab_size - 1);
  std::vector<RowId> ids(4);
  uint64_t highest = 0;
  for (int i = 0; i < 1000000; ++i) {
    const std::vector<uint32_t> history = {token(random), token(random)};
    const uint32_t id = token(random);
    hasher.Hash(history, absl::MakeConstSpan(&id, 1), absl::MakeSpan(ids));
    for (size_t head = 0; head < 4; ++head) {
      ASSERT_GE(ids[head].value(), kToyRecipe.head_offsets[head]);
      ASSERT_LT(ids[head].value(), kToyRecipe.head_offsets[head] + kToyRecipe.head_sizes[head]);
      highest = std::max(highest, ids[head].value());
    }
  }
  EXPECT_EQ(highest, 151u) << "the last usable row is reached, the first padding row is not";
}

TEST(NgramHasherTest, TheFastRemainderEqualsTheDivision) {
  // One head, one order: the id is (w0 * 1 ^ w1 * m) mod size, so w1 = 1 shows any value m.
  std::mt19937_64 random(5);
  for (const uint64_t size : {uint64_t{2}, uint64_t{3}, uint64_t{31}, uint64_t{20000003}, uint64_t{2147483647},
                              uint64_t{4294967291}, (uint64_t{1} << 40) - 87}) {
    std::vector<uint64_t> values = {0, 1, size - 1, size, size + 1, 2 * size - 1, (uint64_t{1} << 63) - 1};
    const uint64_t multiple = ((uint64_t{1} << 63) - 1) / size * size;
    values.insert(values.end(), {multiple, multiple - 1, (multiple - size) - 1, multiple / 2 / size * size});
    for (int i = 0; i < 20000; ++i) values.push_back(random() >> (1 + random() % 60));
    for (const uint64_t value : values) {
      HashConstants constants{{1, value}, {size}, {0}, size, size};
      const NgramHasher hasher(constants, 2, 1, 3);
      ASSERT_EQ(HashAfter(hasher, {1}, {0})[0][0], value % size) << value << " mod " << size;
    }
  }
}

class NgramSizeTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(NgramSizeTest, AnyCuttingWithHistoryEqualsOneShotAndTheNaiveHash) {
  const uint32_t n = GetParam();
  CheckpointSpec spec;
  spec.geometry.ngram_size = n;
  spec.geometry.heads_per_ngram = 3;
  spec.geometry.embed_dim = 8 * 3 * (n - 1);
  const ModelConfig config = testing::ToModelConfig(spec);
  const NgramHasher hasher = MakeHasher(config);
  const HashRecipe recipe = RecipeOf(hasher, config);
  std::mt19937 random(n);
  for (int round = 0; round < 300; ++round) {
    // A third of the tokens is EOS, so cuts before, on and after one are common.
    std::vector<uint32_t> tokens;
    for (int i = 0; i < 40; ++i) {
      tokens.push_back(random() % 3 == 0 ? config.eos_token_id : static_cast<uint32_t>(random() % config.vocab_size));
    }
    const Ids expected = NaiveHash(recipe, tokens, NoMistake(recipe));
    ASSERT_EQ(HashFresh(hasher, config, tokens), expected);

    std::vector<uint32_t> past(hasher.context_len(), config.eos_token_id);
    Ids pieces;
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t length = std::min<size_t>(random() % 6, tokens.size() - begin);
      const std::vector<uint32_t> piece(tokens.begin() + static_cast<int64_t>(begin),
                                        tokens.begin() + static_cast<int64_t>(begin + length));
      const std::vector<uint32_t> history(past.end() - hasher.context_len(), past.end());
      for (auto& ids : HashAfter(hasher, history, piece)) pieces.push_back(ids);
      past.insert(past.end(), piece.begin(), piece.end());
      begin += length;
    }
    ASSERT_EQ(pieces, expected) << "round " << round;
  }
}

TEST_P(NgramSizeTest, AMissingResetIsToldApart) {
  const uint32_t n = GetParam();
  HashRecipe recipe = kToyRecipe;
  recipe.heads_per_ngram = 1;
  recipe.multipliers = {5159850018220775, 4902196785138501, 6891410296393783, 1032908777371477};
  recipe.multipliers.resize(n);
  recipe.head_sizes.resize(n - 1);
  recipe.head_offsets.resize(n - 1);
  const HashConstants constants{recipe.multipliers, recipe.head_sizes, recipe.head_offsets, 152, 256};
  const NgramHasher hasher(constants, n, 1, 7);
  const Ids ids = HashAfter(hasher, std::vector<uint32_t>(n - 1, 7), kToyTokens);
  EXPECT_EQ(ids, NaiveHash(recipe, kToyTokens, {7, 7, false}));
  if (n == 2) {
    EXPECT_EQ(ids, NaiveHash(recipe, kToyTokens, {7, 7, true})) << "with N = 2 an EOS cannot cut anything";
  } else {
    EXPECT_NE(ids, NaiveHash(recipe, kToyTokens, {7, 7, true}));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, NgramSizeTest, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace pleiad
