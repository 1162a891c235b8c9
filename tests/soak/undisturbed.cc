#include "tests/soak/undisturbed.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>
#include <utility>

namespace pleiad::testing {
namespace {

void Require(const Outcome& outcome) {
  if (outcome.ok()) return;
  std::fprintf(stderr, "undisturbed: %s\n", outcome.message.c_str());
  std::abort();
}

LocalEngineOptions Options(uint32_t carries) {
  LocalEngineOptions options;
  options.max_sequences = carries;
  options.threads = 1;
  options.batch_invariant = true;
  return options;
}

}  // namespace

Highways::Highways(uint32_t rows, uint32_t channels, uint32_t seed) : rows_(rows), channels_(channels) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (uint64_t i = 0; i < uint64_t{rows} * channels; ++i) values_.push_back(normal(random));
}

std::vector<float> Highways::Of(absl::Span<const SoakToken> tokens) const {
  std::vector<float> all;
  all.reserve(tokens.size() * channels_);
  for (const SoakToken& token : tokens) {
    const auto first = values_.begin() + static_cast<ptrdiff_t>(uint64_t{token.highway} * channels_);
    all.insert(all.end(), first, first + channels_);
  }
  return all;
}

Undisturbed::Undisturbed(const std::string& model, const Highways* highways, uint32_t carries)
    : highways_(highways), engine_(model, Options(carries)) {}

std::string Undisturbed::Step(CalmCarry& carry, LayerIndex layer, absl::Span<const SoakToken> step, OutputKind kind,
                              DType dtype) {
  std::vector<uint32_t> ids;
  for (const SoakToken& token : step) ids.push_back(token.id);
  StepRequest request = OneSegment(carry.sequence, layer, std::move(ids));
  request.output.kind = kind;
  request.output.dtype = dtype;
  const StepAnswer answer = engine_.Submit(std::move(request), highways_->Of(step)).get();
  Require(answer.result.outcome);
  carry.consumed.insert(carry.consumed.end(), step.begin(), step.end());
  return std::string(reinterpret_cast<const char*>(answer.output.data()), answer.output.size() * sizeof(float));
}

void Undisturbed::Bring(CalmCarry& carry, LayerIndex layer, const SoakLine& line) {
  const bool behind = carry.sequence != SequenceId() && carry.consumed.size() <= line.size() &&
                      std::equal(carry.consumed.begin(), carry.consumed.end(), line.begin());
  if (!behind) {
    End(carry);
    carry.sequence = engine_.Open();
  }
  constexpr size_t kChunk = 256;
  while (carry.consumed.size() < line.size()) {
    const size_t first = carry.consumed.size();
    Step(carry, layer, absl::MakeConstSpan(line).subspan(first, kChunk), OutputKind::kDelta, DType::kF32);
  }
}

std::string Undisturbed::Output(CalmCarry& carry, LayerIndex layer, const SoakLine& before,
                                absl::Span<const SoakToken> step, OutputKind kind, DType dtype) {
  Bring(carry, layer, before);
  return Step(carry, layer, step, kind, dtype);
}

std::string Undisturbed::Blob(CalmCarry& carry, LayerIndex layer, const SoakLine& line) {
  Bring(carry, layer, line);
  SnapshotResult snapshot = engine_.Snapshot(carry.sequence, layer);
  Require(snapshot.outcome);
  return std::move(snapshot.layers.at(0).aux);
}

std::string Undisturbed::Embeddings(LayerIndex layer, std::vector<uint32_t> tokens) {
  LookupRequest request;
  request.layer = layer;
  request.segments.push_back({static_cast<uint32_t>(tokens.size()), {}});
  request.token_ids = std::move(tokens);
  request.want_embeddings = true;
  std::promise<LookupResult> done;
  engine_.engine().Lookup(std::move(request), [&done](LookupResult result) { done.set_value(std::move(result)); });
  LookupResult result = done.get_future().get();
  Require(result.outcome);
  return std::move(result.embeddings);
}

void Undisturbed::End(CalmCarry& carry) {
  if (carry.sequence != SequenceId()) engine_.Release(carry.sequence);
  carry = {};
}

}  // namespace pleiad::testing
