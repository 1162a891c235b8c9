// The reference's numbers, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/replay.h"
#include "client/cli/trace.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/sessions.h"
#include "tests/oracle/model.h"
#include "tests/oracle/oracle.h"

namespace pleiad::testing {
namespace {

using ::testing::Contains;
using ::testing::Field;

constexpr char kGolden[] = PLEIAD_SOURCE_DIR "/tests/golden/";

std::vector<cli::Comparison> Replayed(const client::Client& client, const cli::Trace& trace, const std::string& prefix,
                                      double bound, std::vector<uint32_t> steps = {},
                                      std::optional<uint32_t> layer_index = std::nullopt) {
  client::Client copy = client;
  absl::StatusOr<std::vector<cli::Comparison>> compared = cli::Replay(
      &copy, trace, {.prefix = prefix, .layer_index = layer_index, .steps = std::move(steps), .bound = bound});
  EXPECT_TRUE(compared.ok()) << compared.status();
  return compared.ok() ? *std::move(compared) : std::vector<cli::Comparison>();
}

// The first comparison of `tensor`; fails the test without one.
cli::Comparison Of(const std::vector<cli::Comparison>& compared, const std::string& tensor) {
  for (const cli::Comparison& comparison : compared) {
    if (comparison.tensor == tensor) return comparison;
  }
  ADD_FAILURE() << "nothing compared " << tensor;
  return {};
}

// The size of the worst difference among the tensors of outputs, for the log.
double Worst(const std::vector<cli::Comparison>& compared) {
  double worst = 0;
  for (const cli::Comparison& comparison : compared) {
    if (!comparison.exact) worst = std::fmax(worst, comparison.difference);
  }
  return worst;
}

struct GoldenCase {
  const char* name;
  const char* prefix;
};
void PrintTo(const GoldenCase& golden, std::ostream* out) { *out << golden.name; }

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  GoldenTest()
      : server_(kGolden + std::string(GetParam().name)),
        client_(server_.Connect()),
        trace_(*cli::Trace::Read(kGolden + std::string(GetParam().name) + "/golden.safetensors")) {}

  std::string prefix() const { return GetParam().prefix; }

  InProcessServer server_;
  client::Client client_;
  cli::Trace trace_;
};

TEST_P(GoldenTest, IdsAreExactAndOutputsWithinTheBoundOfTheReference) {
  for (const std::vector<uint32_t>& steps : {std::vector<uint32_t>{}, {1}, {23, 1, 9, 1, 1, 1, 25}}) {
    const auto compared = Replayed(client_, trace_, prefix(), 3e-3, steps);
    EXPECT_TRUE(cli::AllPassed(compared));
    const cli::Comparison ids = Of(compared, "ngram_ids");
    EXPECT_TRUE(ids.exact);
    EXPECT_EQ(ids.values, 61u * client_.model().heads());
    EXPECT_TRUE(Of(compared, "embeddings").passed);
    EXPECT_TRUE(Of(compared, "ple_out").passed);
    EXPECT_TRUE(Of(compared, "conv_after30").passed);
    RecordProperty("worst_relative_l2", std::to_string(Worst(compared)));
    EXPECT_GT(Worst(compared), 1e-5) << "the reference does not round k and v";
  }
}

TEST_P(GoldenTest, TheCapturedGenerationReplaysWithItsOwnSteps) {
  const auto compared = Replayed(client_, trace_, "run." + prefix(), 3e-3);
  EXPECT_TRUE(cli::AllPassed(compared));
  EXPECT_EQ(Of(compared, "ple_out").values, 32u * client_.model().channels);
}

TEST_P(GoldenTest, OneFlippedValueIsCaught) {
  const std::vector<float> output = *trace_.F32(prefix() + ".ple_out", 61);
  std::vector<float> flipped = output;
  flipped[flipped.size() / 2] += 10;
  cli::Trace bad = trace_;
  bad.PutF32(prefix() + ".ple_out", {61, client_.model().channels}, flipped);
  EXPECT_FALSE(cli::AllPassed(Replayed(client_, bad, prefix(), 3e-3)));

  const std::vector<uint64_t> ids = *trace_.I64(prefix() + ".ngram_ids", 61);
  std::vector<int64_t> other(ids.begin(), ids.end());
  other[17] ^= 1;
  bad = trace_;
  bad.PutI64(prefix() + ".ngram_ids", {61, client_.model().heads()}, other);
  const auto compared = Replayed(client_, bad, prefix(), 3e-3);
  EXPECT_FALSE(Of(compared, "ngram_ids").passed);
  EXPECT_EQ(Of(compared, "ngram_ids").difference, 1);
  EXPECT_TRUE(Of(compared, "ple_out").passed);

  // A token that is another one.
  std::vector<uint32_t> tokens = *trace_.I32("run." + prefix() + ".tokens");
  tokens[25] = (tokens[25] + 1) % client_.model().vocab_size;
  bad = trace_;
  bad.PutI32("run." + prefix() + ".tokens", {32}, std::vector<int32_t>(tokens.begin(), tokens.end()));
  EXPECT_FALSE(cli::AllPassed(Replayed(client_, bad, "run." + prefix(), 3e-3)));
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest,
                         ::testing::Values(GoldenCase{"tiny-n3h8", "layer2"},
                                           GoldenCase{"tiny-n2h4-wide-embed", "layer1"}),
                         [](const auto& chosen) { return std::string(chosen.param.prefix); });

// A trace of the oracle, which rounds k and v as the stage does, under the prefix "t".
cli::Trace OracleTrace(const oracle::Model& model, const Passage& passage) {
  const std::vector<double> highway(passage.highway.begin(), passage.highway.end());
  const oracle::Trace exact = oracle::RunTokens(model, passage.tokens, highway, oracle::KvRounding::kBf16);
  const auto floats = [](const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  cli::Trace trace;
  trace.PutI32("t.tokens", {passage.size()}, {passage.tokens.begin(), passage.tokens.end()});
  trace.PutF32("t.highway_in", {passage.size(), passage.channels}, passage.highway);
  trace.PutI64("t.ngram_ids", {passage.size(), model.heads()}, {exact.ids.begin(), exact.ids.end()});
  trace.PutF32("t.embeddings", {passage.size(), model.shape.embed}, floats(exact.embeddings));
  trace.PutF32("t.ple_out", {passage.size(), passage.channels}, floats(exact.delta));
  trace.PutF32("t.highway_out", {passage.size(), passage.channels}, floats(exact.highway_out));
  trace.PutF32("t.conv_after30", {model.state_len(), passage.channels}, floats(oracle::ConvRowsAt(model, exact, 30)));
  return trace;
}

struct OracleCase {
  const char* name;
  CheckpointSpec spec;
};
void PrintTo(const OracleCase& stage, std::ostream* out) { *out << stage.name; }

CheckpointSpec Spec(Geometry geometry, DType row_dtype, std::vector<uint32_t> layer_ids) {
  CheckpointSpec spec;
  spec.geometry = geometry;
  spec.row_dtype = row_dtype;
  spec.ple_layer_ids = std::move(layer_ids);
  return spec;
}

class OracleTest : public ::testing::TestWithParam<OracleCase> {};

TEST_P(OracleTest, EveryLayerIsWithinTheBoundOfTheRoundedOracle) {
  TempDir dir;
  WriteCheckpoint(GetParam().spec, dir.path());
  InProcessServer server(dir.path());
  const client::Client client = server.Connect();
  ASSERT_EQ(client.model().layers.size(), GetParam().spec.ple_layer_ids.size());
  std::mt19937 random(40);
  std::vector<Passage> passages;
  for (size_t p = 0; p < client.model().layers.size(); ++p) {
    const uint32_t layer = client.model().layers[p].layer_index;
    EXPECT_EQ(layer + 1, GetParam().spec.ple_layer_ids[p]);
    const oracle::Model model = oracle::LoadModel(dir.path(), layer + 1);
    passages.push_back(RandomPassage(random, 64, client.model()));
    const cli::Trace trace = OracleTrace(model, passages.back());
    for (const std::vector<uint32_t>& steps : {std::vector<uint32_t>{}, {1}, {5, 9, 1, 17, 3}}) {
      const auto compared = Replayed(client, trace, "t", 3e-4, steps, layer);
      EXPECT_TRUE(cli::AllPassed(compared));
      EXPECT_TRUE(Of(compared, "ngram_ids").exact && Of(compared, "ngram_ids").passed);
      EXPECT_TRUE(Of(compared, "embeddings").passed);
      EXPECT_TRUE(Of(compared, "ple_out").passed);
      EXPECT_TRUE(Of(compared, "conv_after30").passed);
    }
    // Another layer's numbers, and k and v that are not rounded, are told apart.
    const uint32_t other = client.model().layers.back().layer_index;
    if (other != layer) {
      EXPECT_FALSE(cli::AllPassed(Replayed(client, trace, "t", 3e-4, {}, other)));
    }
    cli::Trace unrounded = trace;
    const std::vector<double> highway(passages[p].highway.begin(), passages[p].highway.end());
    const oracle::Trace exact = oracle::RunTokens(model, passages[p].tokens, highway, oracle::KvRounding::kNone);
    unrounded.PutF32("t.ple_out", {64, client.model().channels}, {exact.delta.begin(), exact.delta.end()});
    EXPECT_FALSE(Of(Replayed(client, unrounded, "t", 3e-4, {}, layer), "ple_out").passed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stages, OracleTest,
    ::testing::Values(
        OracleCase{"OneLayer",
                   Spec({.hidden_size = 32, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2},
                        DType::kBf16, {2})},
        OracleCase{"TwoLayers",
                   Spec({.hidden_size = 32, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2},
                        DType::kBf16, {2, 4})},
        OracleCase{"N4OddHiddenFp8Rows",
                   Spec({.hidden_size = 37, .hc_count = 3, .embed_dim = 48, .ngram_size = 4, .heads_per_ngram = 2},
                        DType::kF8E4M3, {1, 3})},
        OracleCase{"N2WideEmbed",
                   Spec({.hidden_size = 20, .hc_count = 1, .embed_dim = 48, .ngram_size = 2, .heads_per_ngram = 4},
                        DType::kF32, {3})}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

TEST(TwoLayerWireTest, LayersOfOneSequenceAreStrangersToEachOther) {
  TempDir dir;
  WriteCheckpoint(TwoLayerSpec(), dir.path());
  InProcessServer server(dir.path(), [](ServerFlags& flags) { flags.batch_invariant = true; });
  client::Client client = server.Connect();
  std::mt19937 random(41);
  const Passage first = RandomPassage(random, 40, client.model()), second = RandomPassage(random, 40, client.model());
  const auto stream = *client.OpenStream();
  client::Sequence alone = *client.OpenSequence(), other = *client.OpenSequence(), both = *client.OpenSequence();
  const std::string wanted_first = RunPassage(*stream, alone, first, {7}, 1);
  const std::string wanted_second = RunPassage(*stream, other, second, {5}, 3);
  const std::string untouched = other.Snapshot(1)->layers[0].aux;

  // Interleaved on one stream: a second one would take the sequence over.
  auto beside = std::async(std::launch::async, [&] { return RunPassage(*stream, both, second, {3, 1}, 3); });
  EXPECT_EQ(RunPassage(*stream, both, first, {1, 11}, 1), wanted_first);
  EXPECT_EQ(beside.get(), wanted_second);
  EXPECT_EQ(both.Snapshot(1)->layers[0].aux, alone.Snapshot(1)->layers[0].aux);
  EXPECT_EQ(both.Snapshot(3)->layers[0].aux, other.Snapshot(3)->layers[0].aux);
  EXPECT_EQ(alone.Snapshot(3)->layers[0].aux, untouched) << "a layer that was never stepped";
  EXPECT_NE(both.Snapshot(1)->layers[0].aux, both.Snapshot(3)->layers[0].aux);
  EXPECT_EQ(both.Snapshot()->layers.size(), 2u);

  // Rewinding one leaves the other.
  const std::string kept = both.Snapshot(3)->layers[0].aux;
  ASSERT_TRUE(stream->Run(MoveOf(both, 38, 1)).ok());
  EXPECT_EQ(both.Snapshot(3)->layers[0].aux, kept);
  EXPECT_EQ(both.position(1), 38u);
  EXPECT_EQ(both.position(3), 40u);
}

}  // namespace
}  // namespace pleiad::testing
