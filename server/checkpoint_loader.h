// A ModelLoader over a checkpoint folder: CPU or GPU, resident or cached table.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "core/base/clock.h"
#include "core/device/device.h"
#include "core/model/checkpoint.h"
#include "core/rows/eviction_policy.h"
#include "core/rows/row_reader.h"
#include "core/rows/row_store.h"
#include "server/device_choice.h"
#include "server/flags.h"
#include "server/memory_plan.h"
#include "server/model_loader.h"

namespace pleiad {

// Parts of a cached table that take the place of the usual ones; each may be empty.
struct CacheParts {
  // Puts something between the row store and the reader of the flags.
  std::function<std::unique_ptr<RowReader>(std::unique_ptr<RowReader>)> wrap_reader = {};
  // As CachedRowStoreOptions::make_policy.
  std::function<std::unique_ptr<EvictionPolicy>(uint32_t slots)> make_policy = {};
};

// Puts something between the engine and the device of the flags. May be empty.
using DeviceWrapper = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>, const Geometry&)>;

class CheckpointLoader final : public ModelLoader {
 public:
  // `clock` null: the system's.
  CheckpointLoader(const ServerFlags& flags, Clock* clock, CacheParts parts = {}, DeviceWrapper wrap_device = {})
      : flags_(flags), clock_(clock), parts_(std::move(parts)), wrap_device_(std::move(wrap_device)) {}

  absl::StatusOr<ModelSummary> Open() override;
  absl::StatusOr<LoadedModel> Load(const LoadHooks& hooks) override;

  // After Open.
  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  absl::StatusOr<std::unique_ptr<RowStore>> LoadResident(Device& device, const LoadHooks& hooks, RowReaderInfo& info);
  absl::StatusOr<std::unique_ptr<RowStore>> MakeCached(Device& device, const LoadHooks& hooks, RowReaderInfo& info);

  const ServerFlags flags_;
  Clock* const clock_;
  const CacheParts parts_;
  const DeviceWrapper wrap_device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  // After Open:
  DeviceChoice choice_;
  MemoryPlan plan_;
};

}  // namespace pleiad
