#include "core/engine/request_rules.h"

#include <zlib.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/engine/aux_blob.h"

namespace pleiad {
namespace {

// Bytes that one token needs on the wire, each way, at most.
uint64_t TokenBytes(const ModelConfig& config) { return 4ull * config.geometry.channels() + 16; }

void CheckTokens(absl::Span<const uint32_t> tokens, const char* field, uint32_t vocab_size,
                 std::optional<uint32_t> segment, size_t first_index, std::vector<ErrorDetail>& errors) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < vocab_size) continue;
    ErrorDetail detail = MakeDetail(
        Reason::kTokenOutOfVocabulary, absl::StrCat(field, "[", first_index + i, "]"), absl::StrCat(tokens[i]),
        absl::StrCat("must be below vocab_size ", vocab_size, "; map multimodal pad values back to image_token_id"));
    detail.segment = segment;
    errors.push_back(std::move(detail));
    return;
  }
}

// Sum of num_tokens against the ids sent and the limit; false when segments cannot be cut from the ids.
template <typename Segment>
bool CheckCounts(absl::Span<const Segment> segments, size_t ids, const ModelConfig& config, uint32_t max_tokens,
                 std::vector<ErrorDetail>& errors) {
  uint64_t total = 0;
  for (const Segment& segment : segments) total += segment.num_tokens;
  if (total != ids) {
    errors.push_back(MakeDetail(Reason::kSizeMismatch, "token_ids", absl::StrCat(ids, " ids"),
                                absl::StrCat("must be the sum of num_tokens, ", total)));
    return false;
  }
  if (total > max_tokens) {
    errors.push_back(MakeDetail(Reason::kTooManyTokens, "token_ids", absl::StrCat(total, " tokens"),
                                absl::StrCat("at most ", max_tokens, " (--max-tokens; each token more costs ",
                                             TokenBytes(config), " bytes of message each way)")));
    return false;
  }
  return true;
}

void CheckTensor(const StepRequest& request, const ModelConfig& config, uint64_t tokens,
                 std::vector<ErrorDetail>& errors) {
  const StepInput& input = request.input;
  const bool absent =
      input.source == StepInput::Source::kAbsent || (input.source == StepInput::Source::kData && input.bytes == 0);
  if (request.mode == StepMode::kPrestage) {
    if (input.source != StepInput::Source::kAbsent) {
      errors.push_back(MakeDetail(Reason::kInvalidField, "highway", "present", "a prestage has no tensor"));
    }
    return;
  }
  if (tokens == 0) {
    if (!absent && input.source == StepInput::Source::kData) {
      errors.push_back(MakeDetail(Reason::kSizeMismatch, "highway.data", absl::StrCat(input.bytes, " bytes"),
                                  "must be absent or empty where there are no tokens"));
    }
    return;
  }
  if (input.source == StepInput::Source::kAbsent) {
    errors.push_back(MakeDetail(Reason::kInvalidField, "highway", "absent", "a step with tokens needs a tensor"));
    return;
  }
  if (input.source == StepInput::Source::kZeros) return;
  if (!input.dtype) {
    errors.push_back(
        MakeDetail(Reason::kInvalidField, "highway.dtype", "DTYPE_UNSPECIFIED", "must be DTYPE_F32 or DTYPE_BF16"));
    return;
  }
  const uint64_t expected = tokens * config.geometry.channels() * ByteSize(*input.dtype);
  if (input.bytes != expected) {
    errors.push_back(
        MakeDetail(Reason::kSizeMismatch, "highway.data", absl::StrCat(input.bytes, " bytes"),
                   absl::StrCat("must be ", expected, ": ", tokens, " tokens x ", config.geometry.channels(),
                                " channels x ", ByteSize(*input.dtype), " bytes of ", Name(*input.dtype))));
  }
}

// `seen` null: the only segment.
void CheckSegment(const StepSegment& segment, uint32_t index, absl::flat_hash_set<SequenceId>* seen,
                  std::vector<ErrorDetail>& errors) {
  const auto add = [&](ErrorDetail detail) {
    detail.segment = index;
    errors.push_back(std::move(detail));
  };
  const bool throw_away = segment.sequence == SequenceId(0);
  if (!throw_away && seen != nullptr && !seen->insert(segment.sequence).second) {
    add(MakeDetail(Reason::kDuplicateSequence, "sequence_id", "named before",
                   "a sequence appears at most once in a request"));
  }
  if (segment.position && segment.position->value() != 0) {
    const auto bad = [&](const char* rule) {
      add(MakeDetail(Reason::kInvalidField, "position", absl::StrCat(segment.position->value()), rule));
    };
    if (segment.fresh) bad("must be absent or 0 with fresh");
    if (throw_away) bad("must be absent or 0 with sequence_id 0");
  }
}

}  // namespace

std::optional<LayerOrdinal> FindLayer(const ModelConfig& config, std::optional<LayerIndex> layer) {
  if (layer) return config.Ordinal(*layer);
  if (config.ple_layers.size() == 1) return LayerOrdinal(0);
  return std::nullopt;
}

LayerChoice ChooseLayer(const ModelConfig& config, std::optional<LayerIndex> layer) {
  LayerChoice choice;
  choice.layer = FindLayer(config, layer);
  if (choice.layer) return choice;
  std::vector<uint32_t> zero_based, listed;
  for (LayerIndex index : config.ple_layers) {
    zero_based.push_back(index.value());
    listed.push_back(index.value() + 1);
  }
  const std::string layers = absl::StrCat("zero-based PLE layers: [", absl::StrJoin(zero_based, ", "),
                                          "] (the config lists [", absl::StrJoin(listed, ", "), "])");
  choice.error =
      layer ? MakeDetail(Reason::kLayerUnknown, "layer_index", absl::StrCat(layer->value(), " has no PLE"), layers)
            : MakeDetail(Reason::kLayerUnknown, "layer_index", "absent",
                         absl::StrCat("must name one of several; ", layers));
  return choice;
}

std::vector<ErrorDetail> CheckStep(const StepRequest& request, const ModelConfig& config, uint32_t max_tokens) {
  std::vector<ErrorDetail> errors;
  if (!FindLayer(config, request.layer)) errors.push_back(ChooseLayer(config, request.layer).error);
  if (request.mode == StepMode::kPrestage && !request.release_after.empty()) {
    errors.push_back(MakeDetail(Reason::kInvalidField, "release_after",
                                absl::StrCat(request.release_after.size(), " ids"), "a prestage releases nothing"));
  }
  const bool counted = CheckCounts<StepSegment>(request.segments, request.token_ids.size(), config, max_tokens, errors);
  absl::flat_hash_set<SequenceId> seen;
  if (request.segments.size() > 1) seen.reserve(request.segments.size());
  size_t first = 0;
  for (uint32_t i = 0; i < request.segments.size(); ++i) {
    const StepSegment& segment = request.segments[i];
    CheckSegment(segment, i, request.segments.size() == 1 ? nullptr : &seen, errors);
    if (!counted) continue;
    CheckTokens(absl::MakeConstSpan(request.token_ids).subspan(first, segment.num_tokens), "token_ids",
                config.vocab_size, i, first, errors);
    first += segment.num_tokens;
  }
  if (counted) CheckTensor(request, config, request.token_ids.size(), errors);
  return errors;
}

std::vector<ErrorDetail> CheckLookup(const LookupRequest& request, const ModelConfig& config, uint32_t max_tokens) {
  std::vector<ErrorDetail> errors;
  if (LayerChoice choice = ChooseLayer(config, request.layer); !choice.layer) errors.push_back(std::move(choice.error));
  CheckCounts<LookupSegment>(request.segments, request.token_ids.size(), config, max_tokens, errors);
  if (!errors.empty()) return errors;
  size_t first = 0;
  for (uint32_t i = 0; i < request.segments.size(); ++i) {
    const LookupSegment& segment = request.segments[i];
    CheckTokens(segment.context_ids, "context_ids", config.vocab_size, i, 0, errors);
    CheckTokens(absl::MakeConstSpan(request.token_ids).subspan(first, segment.num_tokens), "token_ids",
                config.vocab_size, i, first, errors);
    first += segment.num_tokens;
  }
  return errors;
}

std::vector<ErrorDetail> CheckBlobs(absl::Span<const CarryBlob> blobs, const std::string& wanted_model,
                                    const std::string& model_id, const ModelConfig& config) {
  std::vector<ErrorDetail> errors;
  if (!wanted_model.empty() && wanted_model != model_id) {
    errors.push_back(
        MakeDetail(Reason::kModelMismatch, "model_id", wanted_model, absl::StrCat("this server's is ", model_id)));
  }
  absl::flat_hash_set<LayerIndex> seen;
  for (size_t i = 0; i < blobs.size(); ++i) {
    const CarryBlob& blob = blobs[i];
    const std::string at = absl::StrCat("layers[", i, "].");
    if (LayerChoice choice = ChooseLayer(config, blob.layer); !choice.layer) {
      errors.push_back(std::move(choice.error));
      continue;
    }
    if (!seen.insert(blob.layer).second) {
      errors.push_back(
          MakeDetail(Reason::kInvalidField, at + "layer_index", absl::StrCat(blob.layer.value()), "named before"));
    }
    if (blob.crc32) {
      const auto crc =
          static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(blob.aux.data()), blob.aux.size()));
      if (crc != *blob.crc32) {
        errors.push_back(MakeDetail(Reason::kAuxMalformed, at + "crc32", absl::StrCat(*blob.crc32),
                                    absl::StrCat("the bytes give ", crc)));
      }
    }
    absl::StatusOr<AuxBlob> aux = ParseAuxBlob(blob.aux, config.geometry, config.vocab_size);
    if (!aux.ok()) {
      errors.push_back(MakeDetail(Reason::kAuxMalformed, at + "aux", absl::StrCat(blob.aux.size(), " bytes"),
                                  std::string(aux.status().message())));
      continue;
    }
    const Position position = blob.position.value_or(Position(0));
    if (position > kMaxPosition) {
      errors.push_back(
          MakeDetail(Reason::kAuxMalformed, at + "position", absl::StrCat(position.value()), "at most 2^62"));
    } else if (aux->fresh && position != Position(0)) {
      errors.push_back(MakeDetail(Reason::kAuxMalformed, at + "position", absl::StrCat(position.value()),
                                  "must be absent or 0 with hist_len 0"));
    }
  }
  return errors;
}

DType InputDType(const StepRequest& request) { return request.input.dtype.value_or(DType::kF32); }

DType OutputDType(const StepRequest& request) { return request.output.dtype.value_or(InputDType(request)); }

}  // namespace pleiad
