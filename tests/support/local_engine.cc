#include "tests/support/local_engine.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/device/device.h"
#include "core/model/ngram_hasher.h"
#include "core/rows/cached_row_store.h"
#include "core/rows/pread_reader.h"
#include "core/rows/resident_row_store.h"
#include "tests/support/hashing_device.h"
#include "tests/support/rows/label_table.h"
#include "tests/support/test_device.h"

namespace pleiad::testing {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

std::unique_ptr<RowStore> LoadResident(const Checkpoint& checkpoint, Device& device, RowReader& reader) {
  ResidentLoadOptions load;
  load.write_arena = [&device](Slot first, absl::Span<const std::byte> rows) { return device.WriteArena(first, rows); };
  return OrDie(LoadResidentRowStore(checkpoint, reader, load));
}

std::unique_ptr<RowStore> MakeCached(const Checkpoint& checkpoint, Device& device, std::unique_ptr<RowReader> reader,
                                     const LocalEngineOptions& options) {
  CachedRowStoreOptions cache;
  const StagingView staging = device.staging();
  cache.slots = *options.cache_slots;
  cache.staging = {staging.data, staging.rows, staging.row_bytes};
  cache.clock = options.clock;
  std::vector<const TableLayout*> tables;
  std::vector<std::string> files;
  for (const PleLayer& layer : checkpoint.layers()) tables.push_back(&layer.table);
  for (const CheckpointFile& file : checkpoint.files()) files.push_back(file.path);
  return OrDie(CreateCachedRowStore(tables, std::move(files), std::make_unique<LaterReader>(std::move(reader), 3),
                                    std::move(cache)));
}

}  // namespace

LocalEngine::LocalEngine(const std::string& checkpoint_dir, const LocalEngineOptions& options) {
  checkpoint_ = OrDie(Checkpoint::Open({checkpoint_dir, std::nullopt}));
  const ModelConfig& config = checkpoint_->config();
  const auto layers = static_cast<uint32_t>(checkpoint_->layers().size());
  std::vector<LayerWeights> weights;
  EngineModel model;
  model.config = config;
  DeviceOptions device_options;
  for (uint32_t i = 0; i < layers; ++i) {
    weights.push_back(OrDie(checkpoint_->LoadWeights(LayerOrdinal(i))));
    const PleLayer& layer = checkpoint_->layers()[i];
    model.hashers.emplace_back(layer.hash, config.geometry.ngram_size, config.geometry.heads_per_ngram,
                               config.eos_token_id);
    device_options.row_scales.push_back(layer.table.scale);
  }
  model.model_id = checkpoint_->ModelId(weights);
  device_options.geometry = config.geometry;
  device_options.row_dtype = checkpoint_->layers()[0].table.arena_dtype();
  device_options.arena_slots =
      options.cache_slots ? *options.cache_slots : static_cast<uint32_t>(OrDie(ResidentSlots(*checkpoint_)));
  if (options.cache_slots) device_options.staging_rows = 2 * options.max_tokens * config.geometry.heads();
  device_options.carries = options.max_sequences * layers;
  device_options.rollback_tokens = options.rollback_tokens;
  device_options.max_tokens = options.max_tokens;
  device_options.threads = options.threads;
  device_options.batch_invariant = options.batch_invariant;
  std::vector<RowHash> hashes;
  if (!options.cache_slots && options.rows_found_by != RowsFoundBy::kEngine) {
    const std::vector<uint64_t> first_slots = ResidentFirstSlots(*checkpoint_);
    for (uint32_t i = 0; i < layers; ++i) {
      hashes.push_back({model.hashers[i], Slot(static_cast<uint32_t>(first_slots[i]))});
    }
  }
  device_options.row_hashes = hashes;
  std::unique_ptr<Device> device = OrDie(CreateTestDevice(device_options, std::move(weights), options.device));
  std::unique_ptr<RowReader> reader = CreatePreadReader(checkpoint_->files(), 2);
  std::unique_ptr<RowStore> rows = options.cache_slots ? MakeCached(*checkpoint_, *device, std::move(reader), options)
                                                       : LoadResident(*checkpoint_, *device, *reader);
  if (options.rows_found_by == RowsFoundBy::kDevice && !device->info().hashes_rows) {
    device = std::make_unique<HashingDevice>(std::move(device), std::move(hashes), options.hashed_batches);
  }
  if (options.wrap_rows) rows = options.wrap_rows(std::move(rows));
  if (options.wrap_device) device = options.wrap_device(std::move(device));
  EngineOptions engine_options;
  engine_options.max_tokens = options.max_tokens;
  engine_options.max_sequences = options.max_sequences;
  engine_options.rollback_tokens = options.rollback_tokens;
  engine_options.clock = options.clock;
  engine_ = OrDie(Engine::Create(engine_options, std::move(model), std::move(rows), std::move(device)));
}

SequenceId LocalEngine::Open() {
  std::promise<OpenResult> done;
  engine_->Open({}, [&done](OpenResult result) { done.set_value(std::move(result)); });
  const OpenResult result = done.get_future().get();
  if (!result.outcome.ok()) {
    std::fprintf(stderr, "open: %s\n", result.outcome.message.c_str());
    std::abort();
  }
  return result.sequence;
}

std::future<StepAnswer> LocalEngine::Submit(StepRequest request, std::vector<float> highway) {
  struct Call {
    std::vector<float> highway;
    std::vector<float> output;
    std::promise<StepAnswer> done;
  };
  auto call = std::make_shared<Call>();
  call->highway = std::move(highway);
  if (!request.token_ids.empty() && request.mode == StepMode::kForward) {
    request.input.source = StepInput::Source::kData;
    request.input.dtype = DType::kF32;
    request.input.data = reinterpret_cast<const std::byte*>(call->highway.data());
    request.input.bytes = call->highway.size() * sizeof(float);
  }
  request.output.allocate = [call](uint64_t bytes) {
    call->output.resize(bytes / sizeof(float));
    return reinterpret_cast<std::byte*>(call->output.data());
  };
  std::future<StepAnswer> future = call->done.get_future();
  engine_->Submit(std::move(request), [call](StepResult result) {
    call->done.set_value({std::move(result), std::move(call->output)});
  });
  return future;
}

StepAnswer LocalEngine::Step(SequenceId sequence, LayerIndex layer, std::vector<uint32_t> tokens,
                             std::vector<float> highway, std::optional<Position> position) {
  return Submit(OneSegment(sequence, layer, std::move(tokens), position), std::move(highway)).get();
}

SnapshotResult LocalEngine::Snapshot(SequenceId sequence, std::optional<LayerIndex> layer) {
  std::promise<SnapshotResult> done;
  engine_->Snapshot(sequence, 0, layer, [&done](SnapshotResult result) { done.set_value(std::move(result)); });
  return done.get_future().get();
}

Outcome LocalEngine::Restore(SequenceId sequence, std::vector<CarryBlob> layers) {
  std::promise<Outcome> done;
  engine_->Restore(sequence, 0, "", std::move(layers),
                   [&done](Outcome outcome) { done.set_value(std::move(outcome)); });
  return done.get_future().get();
}

GetSequenceResult LocalEngine::Get(SequenceId sequence) {
  std::promise<GetSequenceResult> done;
  engine_->Get(sequence, 0, [&done](GetSequenceResult result) { done.set_value(std::move(result)); });
  return done.get_future().get();
}

bool LocalEngine::Release(SequenceId sequence) {
  std::promise<bool> done;
  engine_->Release(sequence, 0, [&done](const ReleaseResult& result) { done.set_value(result.released); });
  return done.get_future().get();
}

StepRequest OneSegment(SequenceId sequence, LayerIndex layer, std::vector<uint32_t> tokens,
                       std::optional<Position> position) {
  StepRequest request;
  StepSegment segment;
  segment.sequence = sequence;
  segment.num_tokens = static_cast<uint32_t>(tokens.size());
  segment.position = position;
  request.segments.push_back(segment);
  request.layer = layer;
  request.token_ids = std::move(tokens);
  request.output.kind = OutputKind::kDelta;
  return request;
}

}  // namespace pleiad::testing
