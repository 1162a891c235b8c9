#include "server/checkpoint_loader.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/status_macros.h"
#include "core/device/device.h"
#include "core/rows/cached_row_store.h"
#include "core/rows/pread_reader.h"
#include "core/rows/row_reader_factory.h"
#include "server/log.h"

namespace pleiad {
namespace {

DeviceOptions MakeDeviceOptions(const Checkpoint& checkpoint, const ServerFlags& flags, const DeviceChoice& choice,
                                const MemoryPlan& plan, const std::vector<NgramHasher>& hashers) {
  DeviceOptions options;
  options.geometry = checkpoint.config().geometry;
  options.row_dtype = checkpoint.layers().front().table.arena_dtype();
  for (const PleLayer& layer : checkpoint.layers()) options.row_scales.push_back(layer.table.scale);
  options.arena_slots = plan.slots;
  options.staging_rows = plan.staging_rows;
  options.carries = flags.max_sequences * static_cast<uint32_t>(checkpoint.layers().size());
  options.rollback_tokens = flags.rollback_tokens;
  options.max_tokens = flags.max_tokens;
  options.threads = flags.threads;
  options.batch_invariant = flags.batch_invariant;
  if (plan.table == TableMode::kResident) {
    const std::vector<uint64_t> first_slots = ResidentFirstSlots(checkpoint);
    for (size_t i = 0; i < hashers.size(); ++i) {
      options.row_hashes.push_back({hashers[i], Slot(static_cast<uint32_t>(first_slots[i]))});
    }
  }
  options.cuda_ordinal = choice.cuda_ordinal;
  return options;
}

}  // namespace

absl::StatusOr<ModelSummary> CheckpointLoader::Open() {
  PLEIAD_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open({.dir = flags_.model, .eos_token_id = flags_.eos_token_id}));
  PLEIAD_ASSIGN_OR_RETURN(choice_, ChooseDevice(flags_));
  spdlog::info("device {}: {}", choice_.name, choice_.reason);
  PLEIAD_ASSIGN_OR_RETURN(plan_, PlanMemory(*checkpoint_, flags_, choice_.memory));
  spdlog::info("checkpoint {}: {} PLE layer(s) in {} file(s); memory: {}", flags_.model, checkpoint_->layers().size(),
               checkpoint_->files().size(), Describe(plan_));
  ModelSummary summary{.config = checkpoint_->config(), .layers = {}};
  for (const PleLayer& layer : checkpoint_->layers()) {
    summary.layers.push_back({.index = layer.index, .rows = layer.table.rows, .row_dtype = Name(layer.table.dtype)});
  }
  return summary;
}

absl::StatusOr<std::unique_ptr<RowStore>> CheckpointLoader::LoadResident(Device& device, const LoadHooks& hooks,
                                                                         RowReaderInfo& info) {
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  const std::unique_ptr<RowReader> reader = CreatePreadReader(checkpoint_->files(), 2 * threads);
  info = reader->info();
  ResidentLoadOptions options;
  options.write_arena = [&device](Slot first, absl::Span<const std::byte> rows) {
    return device.WriteArena(first, rows);
  };
  options.on_progress = hooks.on_progress;
  options.cancelled = hooks.cancelled;
  options.threads = threads;
  return LoadResidentRowStore(*checkpoint_, *reader, options);
}

absl::StatusOr<std::unique_ptr<RowStore>> CheckpointLoader::MakeCached(Device& device, const LoadHooks& hooks,
                                                                       RowReaderInfo& info) {
  RowReaderOptions reader_options;
  if (flags_.reader != "auto") {
    reader_options.kind = flags_.reader == "pread" ? ReaderKind::kPread : ReaderKind::kIoUring;
  }
  if (flags_.direct != "auto") {
    reader_options.direct = flags_.direct == "off" ? DirectMode::kOff : DirectMode::kRequire;
  }
  PLEIAD_ASSIGN_OR_RETURN(std::unique_ptr<RowReader> reader, CreateRowReader(checkpoint_->files(), reader_options));
  if (parts_.wrap_reader) reader = parts_.wrap_reader(std::move(reader));
  info = reader->info();
  spdlog::info("rows are read by {}: {}", info.name, info.detail);
  const StagingView staging = device.staging();
  CachedRowStoreOptions options;
  options.slots = plan_.slots;
  options.staging = {staging.data, staging.rows, staging.row_bytes};
  options.make_policy = parts_.make_policy;
  options.read_timeout = flags_.read_timeout;
  options.clock = clock_;
  options.on_table_health = hooks.on_table_health;
  std::vector<const TableLayout*> tables;
  for (const PleLayer& layer : checkpoint_->layers()) tables.push_back(&layer.table);
  std::vector<std::string> files;
  for (const CheckpointFile& file : checkpoint_->files()) files.push_back(file.path);
  return CreateCachedRowStore(tables, std::move(files), std::move(reader), std::move(options));
}

absl::StatusOr<LoadedModel> CheckpointLoader::Load(const LoadHooks& hooks) {
  std::vector<LayerWeights> weights;
  EngineModel model{.config = checkpoint_->config(), .hashers = {}, .model_id = {}};
  const Geometry& geometry = model.config.geometry;
  for (uint32_t i = 0; i < checkpoint_->layers().size(); ++i) {
    PLEIAD_ASSIGN_OR_RETURN(LayerWeights layer, checkpoint_->LoadWeights(LayerOrdinal(i)));
    weights.push_back(std::move(layer));
    model.hashers.emplace_back(checkpoint_->layers()[i].hash, geometry.ngram_size, geometry.heads_per_ngram,
                               model.config.eos_token_id);
    if (hooks.cancelled()) return absl::CancelledError("loading was cancelled");
  }
  model.model_id = checkpoint_->ModelId(weights);

  const DeviceOptions options = MakeDeviceOptions(*checkpoint_, flags_, choice_, plan_, model.hashers);
  PLEIAD_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, choice_.kind == DeviceKind::kCuda
                                                              ? CreateCudaDevice(options, std::move(weights))
                                                              : CreateCpuDevice(options, std::move(weights)));
  if (wrap_device_) device = wrap_device_(std::move(device), geometry);
  if (const uint64_t failures = device->stats().capture_failures; failures > 0) {
    spdlog::warn("{} graph(s) could not be captured, batches of their sizes run launch by launch: {}", failures,
                 device->info().detail);
  }
  LoadedModel loaded;
  std::unique_ptr<RowStore> rows;
  if (plan_.table == TableMode::kResident) {
    PLEIAD_ASSIGN_OR_RETURN(rows, LoadResident(*device, hooks, loaded.reader));
  } else {
    PLEIAD_ASSIGN_OR_RETURN(rows, MakeCached(*device, hooks, loaded.reader));
  }
  const EngineOptions engine_options{.max_tokens = flags_.max_tokens,
                                     .max_sequences = flags_.max_sequences,
                                     .rollback_tokens = flags_.rollback_tokens,
                                     .sequence_ttl = flags_.sequence_ttl,
                                     .ready_timeout = flags_.read_timeout,
                                     .clock = clock_};
  PLEIAD_ASSIGN_OR_RETURN(loaded.engine,
                          Engine::Create(engine_options, std::move(model), std::move(rows), std::move(device)));
  return loaded;
}

}  // namespace pleiad
