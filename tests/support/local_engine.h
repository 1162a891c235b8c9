// An engine over a checkpoint on the device of the tests, in process, with calls that wait for their answers.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/engine/engine.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_store.h"
#include "tests/support/device_choice.h"

namespace pleiad::testing {

// Who finds the rows of long steps in a resident table: as a server has it, the engine, or the device, which a
// HashingDevice stands in for where it does not.
enum class RowsFoundBy : uint8_t { kAsServed, kEngine, kDevice };

struct LocalEngineOptions {
  uint32_t max_tokens = 256;
  uint32_t max_sequences = 64;
  uint32_t rollback_tokens = 8;
  uint32_t threads = 2;
  bool batch_invariant = false;
  Clock* clock = nullptr;
  TestDevice device = ChosenTestDevice();
  // Absent: a resident table. Else the slots of the arena of a row cache, whose reads end later and out of order.
  std::optional<uint32_t> cache_slots;
  RowsFoundBy rows_found_by = RowsFoundBy::kAsServed;
  std::shared_ptr<std::atomic<uint64_t>> hashed_batches;  // counted by the HashingDevice; may be null
  // Puts something between the engine and its table; may be empty.
  std::function<std::unique_ptr<RowStore>(std::unique_ptr<RowStore>)> wrap_rows;
  // The same for the device, once its table is loaded.
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrap_device;
};

// The output of one request, [tokens, C].
struct StepAnswer {
  StepResult result;
  std::vector<float> output;
};

// Aborts on any failure to start: tests of failures do not go through here.
class LocalEngine {
 public:
  LocalEngine(const std::string& checkpoint_dir, const LocalEngineOptions& options);

  Engine& engine() { return *engine_; }
  // Nothing else of this object may be used after that.
  std::unique_ptr<Engine> TakeEngine() { return std::move(engine_); }
  const ModelConfig& config() const { return engine_->model().config; }

  SequenceId Open();
  // `highway` [T, C] F32, T = sum of num_tokens; F32 output.
  std::future<StepAnswer> Submit(StepRequest request, std::vector<float> highway);
  // One segment of `sequence` at `layer`; as DELTA.
  StepAnswer Step(SequenceId sequence, LayerIndex layer, std::vector<uint32_t> tokens, std::vector<float> highway,
                  std::optional<Position> position = std::nullopt);
  SnapshotResult Snapshot(SequenceId sequence, std::optional<LayerIndex> layer = std::nullopt);
  Outcome Restore(SequenceId sequence, std::vector<CarryBlob> layers);
  GetSequenceResult Get(SequenceId sequence);
  bool Release(SequenceId sequence);

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
};

// One segment; DELTA; the tensor is set by LocalEngine::Submit.
StepRequest OneSegment(SequenceId sequence, LayerIndex layer, std::vector<uint32_t> tokens,
                       std::optional<Position> position = std::nullopt);

}  // namespace pleiad::testing
