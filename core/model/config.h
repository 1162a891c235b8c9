// config.json of a qwen4_exp checkpoint, as far as the PLE stage needs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/strong_id.h"
#include "core/model/geometry.h"

namespace pleiad {

struct ModelConfig {
  Geometry geometry;
  // Zero-based, ascending, no duplicates; the file's ple_layer_ids are one-based. Index = LayerOrdinal.
  std::vector<LayerIndex> ple_layers;
  uint32_t num_hidden_layers = 0;
  uint32_t vocab_size = 0;
  uint32_t eos_token_id = 0;
  uint64_t ngram_vocab_size_base = 20000000;
  uint64_t ngram_vocab_divisor = 128;
  uint64_t seed = 1234;
  std::optional<uint32_t> image_token_id;
  std::optional<uint32_t> video_token_id;

  // The layer's place among the PLE layers; nullopt where it has no PLE.
  std::optional<LayerOrdinal> Ordinal(LayerIndex layer) const;

  // Checks every bound. InvalidArgument naming the field, its value and the rule; FailedPrecondition without layers.
  absl::Status Validate() const;
};

// Parses the text of config.json; fields may be nested under `text_config`. `eos_override` replaces
// eos_token_id, which may then be absent. Returns InvalidArgument naming the field, its value and the rule;
// FailedPrecondition where the config names no PLE layer.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json,
                                             std::optional<uint32_t> eos_override = std::nullopt);

}  // namespace pleiad
