#include "core/model/hash_constants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/checkpoint_writer.h"

namespace pleiad {
namespace {

using testing::CheckpointSpec;
using ::testing::ElementsAre;

HashConstants Derive(const CheckpointSpec& spec, uint32_t ordinal = 0) {
  return DeriveHashConstants(testing::ToModelConfig(spec), LayerOrdinal(ordinal));
}

TEST(HashConstantsTest, ToyConfigGivesTheKnownConstants) {
  const HashConstants toy = Derive({});
  EXPECT_THAT(toy.multipliers, ElementsAre(5159850018220775, 4902196785138501, 6891410296393783));
  EXPECT_THAT(toy.head_sizes, ElementsAre(31, 37, 41, 43));
  EXPECT_THAT(toy.head_offsets, ElementsAre(0, 31, 68, 109));
  EXPECT_EQ(toy.usable_rows, 152u);
  EXPECT_EQ(toy.padded_rows, 256u);
}

TEST(HashConstantsTest, B03_AnAbsentSeedIs1234AndSeedZeroIsItsOwn) {
  CheckpointSpec spec;
  spec.seed = std::nullopt;
  EXPECT_EQ(Derive(spec), Derive({}));
  spec.seed = 0;
  EXPECT_THAT(Derive(spec).multipliers, ElementsAre(1032908777371477, 6779975073340089, 4869134453997447));
}

TEST(HashConstantsTest, B10_TheSecondLayerOwnsTheNextPrimes) {
  CheckpointSpec spec;
  spec.ple_layer_ids = {2, 4};
  const HashConstants second = Derive(spec, 1);
  EXPECT_THAT(second.head_sizes, ElementsAre(47, 53, 59, 61));
  EXPECT_THAT(second.multipliers, ElementsAre(4267378739598939, 4349150978695757, 1976354410462589));
}

TEST(HashConstantsTest, ReleasedModelGivesTheKnownConstants) {
  CheckpointSpec spec;
  spec.vocab_size = 248320;
  spec.eos_token_id = 248044;
  spec.ngram_vocab_size_base = 20000000;
  spec.geometry = {.hidden_size = 2560, .hc_count = 4, .embed_dim = 2560, .ngram_size = 3, .heads_per_ngram = 8};
  const HashConstants released = Derive(spec);
  EXPECT_THAT(released.multipliers, ElementsAre(23703573157769, 20109073645365, 8052911324071));
  EXPECT_THAT(released.head_sizes,
              ElementsAre(20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
                          20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171));
  EXPECT_EQ(released.usable_rows, 320001446u);
  EXPECT_EQ(released.padded_rows, 320001536u);
  EXPECT_EQ(released.padded_rows - released.usable_rows, 90u);
  EXPECT_EQ(released.padded_rows / 128, 2500012u);
}

TEST(HashConstantsTest, HeadSizesAreThePrimesOfASieveInOrder) {
  constexpr uint64_t kLimit = 60000;
  std::vector<char> composite(kLimit);
  for (uint64_t i = 2; i * i < kLimit; ++i) {
    for (uint64_t j = i * i; j < kLimit; j += i) composite[j] = 1;
  }
  CheckpointSpec spec;
  spec.geometry = {.hidden_size = 8, .hc_count = 1, .embed_dim = 7 * 64, .ngram_size = 8, .heads_per_ngram = 64};
  spec.num_hidden_layers = 9;
  spec.ple_layer_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const uint64_t base : {2u, 3u, 4u, 1024u}) {
    spec.ngram_vocab_size_base = base;
    uint64_t next = base;
    for (uint32_t p = 0; p < 9; ++p) {
      for (const uint64_t size : Derive(spec, p).head_sizes) {
        while (composite[next]) ++next;
        ASSERT_EQ(size, next++);
        ASSERT_LT(next, kLimit);
      }
    }
  }
}

TEST(HashConstantsTest, StrongPseudoprimesAreNotTakenForPrimes) {
  // Composites that pass Miller-Rabin for bases 2, for 2 3, for 2 3 5, and for 2 3 5 7.
  for (const uint64_t liar : {uint64_t{2047}, uint64_t{1373653}, uint64_t{25326001}, uint64_t{3215031751}}) {
    CheckpointSpec spec;
    spec.ngram_vocab_size_base = liar;
    EXPECT_NE(Derive(spec).head_sizes.front(), liar);
  }
}

TEST(HashConstantsTest, RowsAreAMultipleOfTheDivisor) {
  CheckpointSpec spec;
  spec.ngram_vocab_divisor = 1;
  EXPECT_EQ(Derive(spec).padded_rows, 152u);
  spec.ngram_vocab_divisor = 152;
  EXPECT_EQ(Derive(spec).padded_rows, 152u);
  spec.ngram_vocab_divisor = 151;
  EXPECT_EQ(Derive(spec).padded_rows, 302u);
}

}  // namespace
}  // namespace pleiad
