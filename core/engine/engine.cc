#include "core/engine/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"

namespace pleiad {

absl::Status EngineOptions::Validate() const {
  if (max_tokens < 1) return absl::InvalidArgumentError("max_tokens 0: must be at least 1");
  if (max_sequences < 1) return absl::InvalidArgumentError("max_sequences 0: must be at least 1");
  if (sequence_ttl <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_ttl ", absl::FormatDuration(sequence_ttl), ": must be positive"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, EngineModel model,
                                                       std::unique_ptr<RowStore> rows, std::unique_ptr<Device> device) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  if (model.hashers.size() != model.config.ple_layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("hashers ", model.hashers.size(), ": must be one per PLE layer, ",
                                                   model.config.ple_layers.size()));
  }
  return std::make_unique<EngineImpl>(options, std::move(model), std::move(rows), std::move(device));
}

}  // namespace pleiad
