// How the server gets its engine, in two parts: what must be known before listeners open, and what takes long.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/engine.h"
#include "core/model/config.h"
#include "core/rows/resident_row_store.h"
#include "core/rows/row_reader.h"

namespace pleiad {

struct LayerSummary {
  LayerIndex index;
  uint64_t rows = 0;
  std::string row_dtype;  // "BF16", "F32" or "F8_E4M3"
};

struct ModelSummary {
  ModelConfig config;
  std::vector<LayerSummary> layers;
};

struct LoadHooks {
  // A few times a second at most, from one thread at a time.
  std::function<void(const LoadProgress&)> on_progress;
  // The table of a cached row store became unreadable, or with OK readable again; until the engine is destroyed, on any
  // thread, one at a time.
  std::function<void(const absl::Status&)> on_table_health;
  // Polled; true ends the load with Cancelled.
  std::function<bool()> cancelled;
};

struct LoadedModel {
  std::unique_ptr<Engine> engine;
  RowReaderInfo reader;
};

// Used by one thread at a time; outlives the engine it loaded.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;
  // Reads config and headers only. Any error: the server refuses to start.
  virtual absl::StatusOr<ModelSummary> Open() = 0;
  // After Open; blocks for as long as the table takes.
  virtual absl::StatusOr<LoadedModel> Load(const LoadHooks& hooks) = 0;
};

}  // namespace pleiad
