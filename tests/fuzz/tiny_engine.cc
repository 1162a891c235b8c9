#include "tests/fuzz/tiny_engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

LocalEngine& TinyEngine() {
  static LocalEngine* const engine = [] {
    const TempDir dir;
    CheckpointSpec spec;
    spec.geometry = {.hidden_size = 8, .hc_count = 2, .embed_dim = 8, .ngram_size = 3, .heads_per_ngram = 1};
    spec.ple_layer_ids = {2, 3};
    WriteCheckpoint(spec, dir.path());
    return new LocalEngine(dir.path(), {.max_tokens = kTinyMaxTokens,
                                        .max_sequences = 16,
                                        .rollback_tokens = 4,
                                        .threads = 1,
                                        .batch_invariant = true,
                                        .clock = nullptr,
                                        .wrap_rows = nullptr});
  }();
  return *engine;
}

void Require(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

Bystander::Bystander() : tokens_({11, 22, 33, 7, 44, 55, 66, 7, 7, 900, 1, 0}), sequence_(TinyEngine().Open()) {
  LocalEngine& engine = TinyEngine();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  highway_.resize(tokens_.size() * engine.config().geometry.channels());
  for (float& value : highway_) value = normal(random);
  expected_ = engine.Step(SequenceId(0), engine.config().ple_layers[0], tokens_, highway_).output;
  Require(expected_.size() == highway_.size(), "the bystander's own run");
}

std::vector<float> Bystander::Part(size_t first, size_t count) const {
  const size_t channels = highway_.size() / tokens_.size();
  return {highway_.begin() + static_cast<ptrdiff_t>(first * channels),
          highway_.begin() + static_cast<ptrdiff_t>((first + count) * channels)};
}

void Bystander::Begin() {
  LocalEngine& engine = TinyEngine();
  count_ = std::min(1 + at_ % 3, tokens_.size() - at_);
  const auto from = tokens_.begin() + static_cast<ptrdiff_t>(at_);
  StepRequest request =
      OneSegment(sequence_, engine.config().ple_layers[0], {from, from + static_cast<ptrdiff_t>(count_)});
  request.segments[0].fresh = at_ == 0;
  answer_ = engine.Submit(std::move(request), Part(at_, count_));
}

void Bystander::Finish() {
  const StepAnswer answer = answer_.get();
  Require(answer.result.outcome.ok(), "the bystander's step");
  const size_t channels = highway_.size() / tokens_.size();
  Require(
      answer.output.size() == count_ * channels && std::memcmp(answer.output.data(), expected_.data() + at_ * channels,
                                                               answer.output.size() * sizeof(float)) == 0,
      "the bystander's output");
  at_ = (at_ + count_) % tokens_.size();
}

}  // namespace pleiad::testing
