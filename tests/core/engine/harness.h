// An engine over fakes, with calls that wait for their answers.
#pragma once

#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "tests/core/engine/fakes.h"
#include "tests/support/fake_clock.h"

namespace pleiad {

// The answer of one call.
template <typename T>
class Answer {
 public:
  Answer() : promise_(std::make_shared<std::promise<T>>()), future_(promise_->get_future().share()) {}
  std::function<void(T)> fn() {
    return [promise = promise_](T value) { promise->set_value(std::move(value)); };
  }
  const T& Get() const { return future_.get(); }
  bool ready() const { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<T>> promise_;
  std::shared_future<T> future_;
};

// With PLEIAD_TEST_RUN_ENQUEUES in the environment harnesses have a device whose Run only enqueues.
inline RunCost DefaultRunCost() {
  return std::getenv("PLEIAD_TEST_RUN_ENQUEUES") != nullptr ? RunCost::kEnqueueing : RunCost::kTheWork;
}

struct HarnessOptions {
  uint32_t layers = 1;
  uint32_t max_tokens = 64;
  uint32_t max_sequences = 4;
  uint32_t rollback_tokens = 4;
  RunCost run_cost = DefaultRunCost();
  uint32_t pipeline_depth = 1;
  Clock* clock = nullptr;  // null: the harness's
};

class Harness {
 public:
  explicit Harness(const HarnessOptions& options = {}) {
    ModelConfig config;
    config.geometry.hidden_size = 4;
    config.geometry.hc_count = 2;
    config.geometry.embed_dim = 8;
    config.geometry.heads_per_ngram = 2;
    config.geometry.ngram_size = 3;
    config.geometry.conv_kernel_size = 2;
    config.num_hidden_layers = 8;
    config.vocab_size = 1000;
    config.eos_token_id = 7;
    config.ngram_vocab_size_base = 31;
    EngineModel model;
    model.model_id = "model";
    for (uint32_t i = 0; i < options.layers; ++i) config.ple_layers.push_back(LayerIndex(1 + 3 * i));
    for (uint32_t i = 0; i < options.layers; ++i) {
      model.hashers.emplace_back(DeriveHashConstants(config, LayerOrdinal(i)), 3, 2, 7);
    }
    model.config = config;
    geometry = config.geometry;
    auto fake_device = std::make_unique<FakeDevice>(geometry, options.run_cost, options.pipeline_depth);
    auto fake_rows = std::make_unique<FakeRowStore>();
    device = fake_device.get();
    rows = fake_rows.get();
    EngineOptions engine_options;
    engine_options.max_tokens = options.max_tokens;
    engine_options.max_sequences = options.max_sequences;
    engine_options.rollback_tokens = options.rollback_tokens;
    engine_options.clock = options.clock != nullptr ? options.clock : &clock;
    engine = *Engine::Create(engine_options, std::move(model), std::move(fake_rows), std::move(fake_device));
  }
  ~Harness() {
    rows->Answer(absl::OkStatus());
    device->Open();
  }

  OpenResult Open(OpenRequest request = {}) {
    Answer<OpenResult> answer;
    engine->Open(std::move(request), answer.fn());
    return answer.Get();
  }
  // A step of `tokens` of one sequence with a zero highway.
  StepRequest Request(SequenceId sequence, std::vector<uint32_t> tokens, std::optional<uint64_t> position = {}) {
    StepRequest request;
    StepSegment segment;
    segment.sequence = sequence;
    segment.num_tokens = static_cast<uint32_t>(tokens.size());
    if (position) segment.position = Position(*position);
    request.segments.push_back(segment);
    request.token_ids = std::move(tokens);
    request.layer = LayerIndex(1);
    request.input.source = request.token_ids.empty() ? StepInput::Source::kAbsent : StepInput::Source::kZeros;
    return request;
  }
  Answer<StepResult> Submit(StepRequest request, StepId* id = nullptr) {
    Answer<StepResult> answer;
    auto buffer = std::make_shared<std::vector<std::byte>>();
    request.output.allocate = [buffer](uint64_t bytes) {
      buffer->resize(bytes);
      return buffer->data();
    };
    const StepId step =
        engine->Submit(std::move(request), [fn = answer.fn(), buffer](StepResult r) { fn(std::move(r)); });
    if (id != nullptr) *id = step;
    return answer;
  }
  StepResult Step(StepRequest request) { return Submit(std::move(request)).Get(); }
  Answer<GetSequenceResult> SubmitGet(SequenceId sequence, uint64_t epoch = 0) {
    Answer<GetSequenceResult> answer;
    engine->Get(sequence, epoch, answer.fn());
    return answer;
  }
  GetSequenceResult Get(SequenceId sequence, uint64_t epoch = 0) { return SubmitGet(sequence, epoch).Get(); }
  SnapshotResult Snapshot(SequenceId sequence, std::optional<LayerIndex> layer = {}, uint64_t epoch = 0) {
    Answer<SnapshotResult> answer;
    engine->Snapshot(sequence, epoch, layer, answer.fn());
    return answer.Get();
  }
  Outcome Restore(SequenceId sequence, std::vector<CarryBlob> layers, std::string model_id = "") {
    Answer<Outcome> answer;
    engine->Restore(sequence, 0, std::move(model_id), std::move(layers), answer.fn());
    return answer.Get();
  }
  ReleaseResult Release(SequenceId sequence, uint64_t epoch = 0) {
    Answer<ReleaseResult> answer;
    engine->Release(sequence, epoch, answer.fn());
    return answer.Get();
  }
  LookupResult Lookup(LookupRequest request) {
    Answer<LookupResult> answer;
    engine->Lookup(std::move(request), answer.fn());
    return answer.Get();
  }
  // Position, low and start of the last step of layer 1.
  std::vector<uint64_t> Where(SequenceId sequence) {
    const SequenceLayerState state = Get(sequence).layers.at(0);
    return {state.position.value(), state.low.value(), state.last_step_start.value()};
  }

  FakeClock clock;
  Geometry geometry;
  FakeDevice* device = nullptr;
  FakeRowStore* rows = nullptr;
  std::unique_ptr<Engine> engine;
};

}  // namespace pleiad
