// Checkpoints of many shapes with a trace, the oracle's answer to it, and an engine that serves them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/engine/aux_blob.h"
#include "tests/oracle/model.h"
#include "tests/oracle/oracle.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

enum class Sums : uint8_t { kFastest, kBatchInvariant };

struct StageCase {
  std::string name;
  CheckpointSpec spec;
  uint32_t rollback = 8;
  Sums sums = Sums::kFastest;
  std::optional<uint32_t> cache_slots = std::nullopt;  // absent: resident
};

inline std::vector<StageCase> StageCases() {
  std::vector<StageCase> cases;
  const auto add = [&](std::string name, Geometry geometry, uint32_t rollback, Sums sums = Sums::kFastest) {
    StageCase stage;
    stage.name = std::move(name);
    stage.spec.geometry = geometry;
    stage.rollback = rollback;
    stage.sums = sums;
    cases.push_back(stage);
  };
  add("N3Hc4", {.hidden_size = 32, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2}, 8);
  add("N3Hc4Invariant", {.hidden_size = 32, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2}, 8,
      Sums::kBatchInvariant);
  add("N2Hc1WideEmbedRollback1",
      {.hidden_size = 20, .hc_count = 1, .embed_dim = 48, .ngram_size = 2, .heads_per_ngram = 4}, 1);
  add("N4Hc3OddHidden", {.hidden_size = 37, .hc_count = 3, .embed_dim = 48, .ngram_size = 4, .heads_per_ngram = 2}, 8);
  add("N4Hc2Rollback0Invariant",
      {.hidden_size = 24, .hc_count = 2, .embed_dim = 24, .conv_kernel_size = 3, .ngram_size = 4, .heads_per_ngram = 1},
      0, Sums::kBatchInvariant);
  add("N3Hc2NoConvState",
      {.hidden_size = 16, .hc_count = 2, .embed_dim = 32, .conv_kernel_size = 1, .ngram_size = 3, .heads_per_ngram = 2},
      0);
  cases[3].spec.ple_layer_ids = {2, 3};  // two PLE layers
  cases[2].spec.row_dtype = DType::kF8E4M3;
  cases[5].spec.row_dtype = DType::kF32;
  // The same with row caches smaller than a batch.
  const std::vector<uint32_t> arenas = {0, 8, 64, 8, 0, 8};
  for (size_t i = 0; i < arenas.size(); ++i) {
    StageCase cached = cases[i];
    cached.name += absl::StrCat("Cached", arenas[i]);
    cached.cache_slots = arenas[i];
    cases.push_back(std::move(cached));
  }
  return cases;
}

struct StageTrace {
  std::vector<uint32_t> tokens;  // [60], with EOS and repeats
  std::vector<float> highway;    // [60, C]
  oracle::Trace exact, rounded;
  std::vector<double> rounded_rows_at_end;
};

class StageFixture {
 public:
  explicit StageFixture(const StageCase& stage)
      : dir_(), stage_(Write(stage, dir_.path())), local(dir_.path(), Options(stage)) {
    for (uint32_t id : stage.spec.ple_layer_ids) models_.push_back(oracle::LoadModel(dir_.path(), id));
    std::mt19937 random(99);
    for (const oracle::Model& model : models_) {
      StageTrace trace;
      for (int i = 0; i < 60; ++i) trace.tokens.push_back(random() % (i % 5 == 0 ? 4 : 1000));
      for (int eos : {0, 7, 8, 19, 41}) trace.tokens[static_cast<size_t>(eos)] = 7;
      const std::vector<double> highway = oracle::RandomValues(60 * model.shape.channels(), 1.0, 5);
      trace.highway.assign(highway.begin(), highway.end());
      trace.exact = oracle::RunTokens(model, trace.tokens, highway, oracle::KvRounding::kNone);
      trace.rounded = oracle::RunTokens(model, trace.tokens, highway, oracle::KvRounding::kBf16);
      trace.rounded_rows_at_end = oracle::ConvRowsAt(model, trace.rounded, 60);
      traces_.push_back(std::move(trace));
    }
    if (stage.cache_slots) {
      StageCase resident = stage;
      resident.cache_slots.reset();
      LocalEngine reference(dir_.path(), Options(resident));
      RunWhole(reference);
    } else {
      RunWhole(local);
    }
  }

  size_t layers() const { return models_.size(); }
  LayerIndex layer(size_t p) const { return local_config().ple_layers[p]; }
  size_t channels() const { return local_config().geometry.channels(); }
  bool exact() const { return stage_.sums == Sums::kBatchInvariant; }
  const oracle::Model& model(size_t p) const { return models_[p]; }
  const StageTrace& trace(size_t p) const { return traces_[p]; }
  bool cached() const { return stage_.cache_slots.has_value(); }
  // What the engine with a resident table gives for the whole trace as one step.
  const std::vector<float>& whole(size_t p) const { return whole_[p]; }

  // Tokens [first, first + count) of the trace as one step.
  StepAnswer StepTrace(SequenceId sequence, size_t p, size_t first, size_t count) {
    const StageTrace& t = traces_[p];
    return local.Step(
        sequence, layer(p),
        {t.tokens.begin() + static_cast<ptrdiff_t>(first), t.tokens.begin() + static_cast<ptrdiff_t>(first + count)},
        {t.highway.begin() + static_cast<ptrdiff_t>(first * channels()),
         t.highway.begin() + static_cast<ptrdiff_t>((first + count) * channels())});
  }

  // A hint for tokens [first, first + count) of the trace. Not waited for.
  std::future<StepAnswer> PrestageTrace(SequenceId sequence, size_t p, size_t first, size_t count) {
    const StageTrace& t = traces_[p];
    StepRequest request = OneSegment(
        sequence, layer(p),
        {t.tokens.begin() + static_cast<ptrdiff_t>(first), t.tokens.begin() + static_cast<ptrdiff_t>(first + count)});
    request.mode = StepMode::kPrestage;
    return local.Submit(std::move(request), {});
  }

  std::vector<uint32_t> HistoryOf(const CarryBlob& blob) const {
    return ParseAuxBlob(blob.aux, local_config().geometry, local_config().vocab_size)->history;
  }
  std::vector<float> ConvRowsOf(const CarryBlob& blob) const {
    return ParseAuxBlob(blob.aux, local_config().geometry, local_config().vocab_size)->conv_rows;
  }

  // Bit-equal with batch-invariant sums, else within 3e-4 over all values together.
  void ExpectSame(const std::vector<float>& got, const std::vector<float>& want) const {
    ASSERT_EQ(got.size(), want.size());
    if (exact()) {
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
    } else {
      EXPECT_LE(oracle::RelativeL2(got, std::vector<double>(want.begin(), want.end())), 3e-4);
    }
  }

 private:
  static const StageCase& Write(const StageCase& stage, const std::string& dir) {
    WriteCheckpoint(stage.spec, dir);
    return stage;
  }
  void RunWhole(LocalEngine& engine) {
    for (size_t p = 0; p < layers(); ++p) {
      const SequenceId sequence = engine.Open();
      whole_.push_back(engine.Step(sequence, layer(p), traces_[p].tokens, traces_[p].highway).output);
      engine.Release(sequence);
    }
  }
  static LocalEngineOptions Options(const StageCase& stage) {
    LocalEngineOptions options;
    options.rollback_tokens = stage.rollback;
    options.batch_invariant = stage.sums == Sums::kBatchInvariant;
    options.cache_slots = stage.cache_slots;
    return options;
  }
  const ModelConfig& local_config() const { return const_cast<LocalEngine&>(local).config(); }

  TempDir dir_;
  StageCase stage_;
  std::vector<oracle::Model> models_;
  std::vector<StageTrace> traces_;
  std::vector<std::vector<float>> whole_;

 public:
  LocalEngine local;
};

}  // namespace pleiad::testing
