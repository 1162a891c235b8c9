// Rules that concern a request alone: what can be refused before any carry is looked at. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/engine/engine.h"
#include "core/engine/failure.h"
#include "core/model/config.h"

namespace pleiad {

struct LayerChoice {
  std::optional<LayerOrdinal> layer;
  ErrorDetail error;  // when there is no layer
};

// The layer a request names; absent is allowed where the model has one PLE layer. FindLayer does not say why there is
// none.
std::optional<LayerOrdinal> FindLayer(const ModelConfig& config, std::optional<LayerIndex> layer);
LayerChoice ChooseLayer(const ModelConfig& config, std::optional<LayerIndex> layer);

// Every broken rule of a step, by segment where it concerns one. Empty: well-formed.
std::vector<ErrorDetail> CheckStep(const StepRequest& request, const ModelConfig& config, uint32_t max_tokens);

// Every broken rule of a lookup.
std::vector<ErrorDetail> CheckLookup(const LookupRequest& request, const ModelConfig& config, uint32_t max_tokens);

// Checks blobs of an open or a restore: layers known and named once, exact length, ids in vocabulary, crc, position.
// Empty `wanted_model` is not checked against `model_id`.
std::vector<ErrorDetail> CheckBlobs(absl::Span<const CarryBlob> blobs, const std::string& wanted_model,
                                    const std::string& model_id, const ModelConfig& config);

// What CheckStep settled: formats of input and output.
DType InputDType(const StepRequest& request);
DType OutputDType(const StepRequest& request);

}  // namespace pleiad
