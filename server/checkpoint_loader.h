// A ModelLoader over a checkpoint folder: CPU device, resident or cached table.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "core/device/device.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_store.h"
#include "server/flags.h"
#include "server/memory_plan.h"
#include "server/model_loader.h"

namespace pleiad {

class CheckpointLoader final : public ModelLoader {
 public:
  // `clock` null: the system's.
  CheckpointLoader(const ServerFlags& flags, Clock* clock) : flags_(flags), clock_(clock) {}

  absl::StatusOr<ModelSummary> Open() override;
  absl::StatusOr<LoadedModel> Load(const LoadHooks& hooks) override;

  // After Open.
  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  absl::StatusOr<std::unique_ptr<RowStore>> LoadResident(Device& device, const LoadHooks& hooks, RowReaderInfo& info);
  absl::StatusOr<std::unique_ptr<RowStore>> MakeCached(Device& device, const LoadHooks& hooks, RowReaderInfo& info);

  const ServerFlags flags_;
  Clock* const clock_;
  std::unique_ptr<Checkpoint> checkpoint_;
  MemoryPlan plan_;  // after Open
};

}  // namespace pleiad
