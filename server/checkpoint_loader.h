// A ModelLoader over a checkpoint folder: CPU device, pread reader, resident table.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "core/model/checkpoint.h"
#include "server/flags.h"
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
  const ServerFlags flags_;
  Clock* const clock_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace pleiad
