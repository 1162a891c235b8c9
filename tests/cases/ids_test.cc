// Which rows a token names: B01, B02, B03, B10.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cases/stack.h"
#include "tests/core/model/naive_hash.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// The toy sequence nine times: enough tokens for a bound.
std::vector<uint32_t> ToyNineTimes() {
  std::vector<uint32_t> tokens;
  for (int i = 0; i < 9; ++i) tokens.insert(tokens.end(), kToyTokens.begin(), kToyTokens.end());
  return tokens;
}

// What the stage would give if the hash made `mistakes`.
std::vector<double> MistakenDelta(const oracle::Model& model, const Story& story, const HashMistakes& mistakes) {
  const HashRecipe recipe{model.numbers.multipliers, model.numbers.sizes, model.numbers.offsets, 2, 7};
  std::vector<double> embeddings;
  for (const std::vector<uint64_t>& ids : NaiveHash(recipe, story.tokens, mistakes)) {
    for (const uint64_t id : ids) {
      const std::vector<double> row = model.row(id);
      embeddings.insert(embeddings.end(), row.begin(), row.end());
    }
  }
  return oracle::RunEmbeddings(model, embeddings, {story.highway.begin(), story.highway.end()},
                               oracle::KvRounding::kBf16)
      .delta;
}

TEST(B01, TheToySequenceNamesTheKnownRows) {
  Stack stack;
  EXPECT_EQ(stack.Ids(kToyTokens), kToyIds);
}

TEST(B01, StepsGatherTheRowsOfTheFormulaAndOfNoSisterRecipe) {
  Stack stack;
  const Story story = stack.MakeStory(ToyNineTimes(), 3);
  const Stack::Whole whole = stack.FreshRun(story);
  stack.ExpectOracle(story, whole);

  const HashMistakes right{.start_fill = 7, .reset_fill = 7, .no_reset = false};
  EXPECT_LE(oracle::RelativeL2(whole.output, MistakenDelta(stack.model(), story, right)), 3e-4);
  for (const HashMistakes& wrong : {HashMistakes{.start_fill = 0, .reset_fill = 7, .no_reset = false},
                                    HashMistakes{.start_fill = 7, .reset_fill = 7, .no_reset = true},
                                    HashMistakes{.start_fill = 7, .reset_fill = 0, .no_reset = false}}) {
    EXPECT_GT(oracle::RelativeL2(whole.output, MistakenDelta(stack.model(), story, wrong)), 3e-2);
  }
}

TEST(B02, IdsOutsideTheVocabularyAreRefusedByPositionAndLeaveNoTrace) {
  Stack stack;
  const uint64_t sequence = stack.Open();
  const Where before = stack.At(sequence);
  for (const auto& [tokens, field] :
       std::vector<std::pair<std::vector<uint32_t>, std::string>>{{{11, static_cast<uint32_t>(-1), 22}, "token_ids[1]"},
                                                                  {{1000}, "token_ids[0]"},
                                                                  {{11, 22, uint32_t{1} << 31}, "token_ids[2]"}}) {
    const Answer answer = stack.Forward(stack.Request(sequence, stack.MakeStory(tokens, 1), 0));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(answer.reason(), v1::REASON_TOKEN_OUT_OF_VOCABULARY);
    EXPECT_EQ(answer.detail.details(0).field(), field);
    EXPECT_THAT(answer.status.error_message(), HasSubstr("map multimodal pad values back to image_token_id"));
    EXPECT_EQ(stack.At(sequence), before);
  }
  const Story story = stack.MakeStory({11, 22, 33}, 2);
  const Stack::Whole whole = stack.FreshRun(story);
  EXPECT_TRUE(SameBits(stack.Step(sequence, story, 0), whole.output));
  EXPECT_EQ(stack.At(sequence), whole.end);
  EXPECT_EQ(stack.Ids(story.tokens), (std::vector(kToyIds.begin(), kToyIds.begin() + 3)));
}

// An id above 32 bits cannot be sent: the field is uint32 on the wire.
TEST(B02, TheFieldOfTokenIdsHas32Bits) {
  const auto* field = v1::ForwardRequest::descriptor()->FindFieldByName("token_ids");
  EXPECT_EQ(field->cpp_type(), google::protobuf::FieldDescriptor::CPPTYPE_UINT32);
}

TEST(B03, TheFirstEntryOfAnEosListIsTheBoundary) {
  Stack stack({.change = [](TestCheckpoint& c) { c.config["eos_token_id"] = {7, 9}; }});
  EXPECT_EQ(stack.Ids(kToyTokens), kToyIds);
  // After 9 the older token is seen, after 7 it is not.
  EXPECT_NE(stack.Ids({11, 9, 44})[2], stack.Ids({12, 9, 44})[2]);
  EXPECT_EQ(stack.Ids({11, 7, 44})[2], stack.Ids({12, 7, 44})[2]);
}

TEST(B03, AnAbsentSeedIs1234AndZeroIsAValue) {
  CheckpointSpec spec;
  spec.seed = std::nullopt;
  EXPECT_EQ(Stack({.spec = spec}).Ids(kToyTokens), kToyIds);
  spec.seed = 0;
  EXPECT_EQ(Stack({.spec = spec}).Ids({11})[0], (std::vector<uint64_t>{11, 48, 104, 148}));
}

TEST(B03, FieldsOutOfBoundsRefuseTheStartByName) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"eos_token_id", nullptr},
                                                           {"eos_token_id", nlohmann::json::array()},
                                                           {"ngram_size", 0},
                                                           {"ngram_size", 1},
                                                           {"ngram_size", 1000},
                                                           {"heads_per_ngram", 0},
                                                           {"ple_embed_dim", 33},
                                                           {"vocab_size", 0}}) {
    const auto change = [&, &name = field, &to = value](TestCheckpoint& c) { c.config[name] = to; };
    EXPECT_THAT(StartRefusal({.change = change}), FailsWith(absl::StatusCode::kInvalidArgument, field)) << value;
  }
}

CheckpointSpec TwoLayers(std::vector<uint32_t> listed) {
  CheckpointSpec spec;
  spec.ple_layer_ids = std::move(listed);
  spec.num_hidden_layers = 6;
  return spec;
}

TEST(B10, LayersHaveHashAndStateOfTheirOwn) {
  Stack stack({.spec = TwoLayers({5, 2, 2})});
  ASSERT_EQ(stack.config().ple_layers, (std::vector{LayerIndex(1), LayerIndex(4)}));
  EXPECT_EQ(stack.Ids({11}, 0)[0], kToyIds[0]);
  EXPECT_EQ(stack.Ids({11}, 1)[0], (std::vector<uint64_t>{23, 71, 113, 199}));

  const Story story = stack.RandomStory(64, 5);
  const Stack::Whole first = stack.FreshRun(story, 0), second = stack.FreshRun(story, 1);
  stack.ExpectOracle(story, first, 0);
  stack.ExpectOracle(story, second, 1);
  EXPECT_FALSE(SameBits(first.output, second.output));

  const uint64_t sequence = stack.Open();
  const Where untouched = stack.At(sequence, 1);
  std::vector<float> a, b;
  a = stack.Step(sequence, story.Part(0, 30), std::nullopt, 0);
  EXPECT_EQ(stack.At(sequence, 1), untouched);
  b = stack.Step(sequence, story.Part(0, 20), std::nullopt, 1);
  const Where stepped = stack.At(sequence, 1);
  a = Join(a, stack.Step(sequence, story.Part(30, 34), std::nullopt, 0));
  EXPECT_EQ(stack.At(sequence, 1), stepped);
  EXPECT_EQ(stack.At(sequence, 0), first.end);
  b = Join(b, stack.Step(sequence, story.Part(20, 44), std::nullopt, 1));
  EXPECT_EQ(stack.At(sequence, 1), second.end);
  EXPECT_TRUE(SameBits(a, first.output));
  EXPECT_TRUE(SameBits(b, second.output));
}

TEST(B10, ALayerWithoutPleIsRefusedWithTheOnesThatHaveIt) {
  Stack stack({.spec = TwoLayers({2, 5})});
  const uint64_t sequence = stack.Open();
  v1::ForwardRequest request = stack.Request(sequence, stack.MakeStory({11}, 1));
  request.set_layer_index(2);
  Answer answer = stack.Forward(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.reason(), v1::REASON_LAYER_UNKNOWN);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("[1, 4] (the config lists [2, 5])"));
  request.clear_layer_index();
  answer = stack.Forward(request);
  EXPECT_EQ(answer.reason(), v1::REASON_LAYER_UNKNOWN) << "one of several must be named";
}

TEST(B10, LayerIdsOutsideTheModelRefuseTheStart) {
  for (const std::vector<uint32_t>& ids : {std::vector<uint32_t>{0}, std::vector<uint32_t>{7}}) {
    const auto change = [&](TestCheckpoint& c) { c.config["ple_layer_ids"] = ids; };
    EXPECT_THAT(StartRefusal({.spec = TwoLayers({2}), .change = change}),
                FailsWith(absl::StatusCode::kInvalidArgument, "ple_layer_ids"));
  }
}

}  // namespace
}  // namespace pleiad::testing
