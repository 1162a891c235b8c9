#include "tests/oracle/oracle.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/oracle/model.h"
#include "tests/oracle/numbers.h"
#include "tests/oracle/trace_file.h"

namespace pleiad::oracle {
namespace {

struct GoldenCase {
  const char* name;
  uint32_t layer;
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  std::string directory_ = std::string(PLEIAD_SOURCE_DIR "/tests/golden/") + GetParam().name;
  Model model_ = LoadModel(directory_, GetParam().layer);
  TraceFile golden_{directory_ + "/golden.safetensors"};
  std::string layer_ = "layer" + std::to_string(GetParam().layer) + ".";
};

TEST_P(GoldenTest, DerivesTheNumbersStoredInTheFile) {
  const HashNumbers derived = DeriveHash(model_.hash);
  EXPECT_EQ(derived.multipliers, model_.numbers.multipliers);
  EXPECT_EQ(derived.sizes, model_.numbers.sizes);
  EXPECT_EQ(derived.offsets, model_.numbers.offsets);
}

TEST_P(GoldenTest, AgreesWithTheReferenceOnEveryTensor) {
  const Trace trace =
      RunTokens(model_, golden_.Tokens(layer_ + "tokens"), golden_.Values(layer_ + "highway_in"), KvRounding::kNone);
  const std::vector<int64_t> ids = golden_.Integers(layer_ + "ngram_ids");
  EXPECT_EQ(trace.ids, std::vector<uint64_t>(ids.begin(), ids.end()));
  EXPECT_EQ(trace.embeddings, golden_.Values(layer_ + "embeddings"));
  EXPECT_LT(RelativeL2(trace.gate, golden_.Values(layer_ + "gate")), 1e-6);
  EXPECT_LT(RelativeL2(trace.delta, golden_.Values(layer_ + "ple_out")), 1e-6);
  EXPECT_LT(RelativeL2(trace.highway_out, golden_.Values(layer_ + "highway_out")), 1e-6);
  EXPECT_LT(RelativeL2(ConvRowsAt(model_, trace, 30), golden_.Values(layer_ + "conv_after30")), 1e-6);
}

TEST_P(GoldenTest, RoundingOfKeyAndValueCostsWhatTheToleranceAllows) {
  const Trace trace =
      RunTokens(model_, golden_.Tokens(layer_ + "tokens"), golden_.Values(layer_ + "highway_in"), KvRounding::kBf16);
  const double error = RelativeL2(trace.delta, golden_.Values(layer_ + "ple_out"));
  EXPECT_GT(error, 1e-3);
  EXPECT_LT(error, 3e-3);
}

TEST_P(GoldenTest, ReplaysTheCapturedGeneration) {
  const Trace trace = RunTokens(model_, golden_.Tokens("run." + layer_ + "tokens"),
                                golden_.Values("run." + layer_ + "highway_in"), KvRounding::kNone);
  EXPECT_LT(RelativeL2(trace.delta, golden_.Values("run." + layer_ + "ple_out")), 3e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest,
                         testing::Values(GoldenCase{"tiny-n3h8", 2}, GoldenCase{"tiny-n2h4-wide-embed", 1}),
                         [](const auto& param) { return param.param.layer == 2 ? "N3H8" : "N2H4"; });

TEST(OracleHash, KnowsTheToyAnswers) {
  const HashConfig toy;
  const std::vector<uint64_t> expected = {6,   41,  72, 124, 20, 53,  83, 128, 21, 42,  99, 122, 3,  42,
                                          105, 142, 20, 43,  99, 126, 29, 62,  75, 129, 27, 53,  85, 137};
  EXPECT_EQ(HashTokens(toy, DeriveHash(toy), {11, 22, 33, 7, 44, 55, 66}), expected);
}

TEST(OracleHash, KnowsTheReleasedAnswers) {
  HashConfig released;
  released.vocab_size = 248320;
  released.eos = 248044;
  released.heads_per_ngram = 8;
  released.base = 20000000;
  const HashNumbers numbers = DeriveHash(released);
  EXPECT_EQ(numbers.multipliers, (std::vector<uint64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(numbers.usable_rows, 320001446u);
  EXPECT_EQ(numbers.padded_rows, 320001536u);
  const std::vector<uint64_t> ids = HashTokens(released, numbers, {5, 7, 248044, 9});
  EXPECT_EQ(ids[0], 15389869u);
  EXPECT_EQ(ids[7], 155458159u);
  EXPECT_EQ(ids[8], 179763390u);
  EXPECT_EQ(ids[15], 315720898u);
  EXPECT_EQ(ids[48], 18043673u);
  EXPECT_EQ(ids[63], 307951937u);
}

TEST(OracleNumbers, Bf16SurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = Bf16Value(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(Bf16Bits(value), bits);
    EXPECT_EQ(RoundToBf16(value), value);
  }
}

TEST(OracleNumbers, RoundsTiesToEven) {
  EXPECT_EQ(RoundToBf16(1 + 1.0 / 256), 1.0);
  EXPECT_EQ(RoundToBf16(1 + 3.0 / 256), 1 + 4.0 / 256);
  EXPECT_EQ(RoundToBf16(1 + 1.0 / 256 + 1e-9), 1 + 2.0 / 256);
}

TEST(OracleResult, UnexpectedNanIsNeverWithinABound) {
  const double nan = std::nan("");
  EXPECT_FALSE(RelativeL2(std::vector<double>{nan}, {1.0}) <= 1e9);
}

}  // namespace
}  // namespace pleiad::oracle
