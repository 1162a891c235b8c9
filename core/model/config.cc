#include "core/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/model/json.h"

namespace pleiad {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxAuxBytes = uint64_t{1} << 30;

absl::Status Wrong(absl::string_view field, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, " is ", value, "; it must be ", rule));
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Wrong(field, absl::StrCat(value), absl::StrCat("in [", min, ", ", max, "]"));
}

// The field where it is present and not null, else null.
const json* Find(const json& object, const char* field) {
  const auto it = object.find(field);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<uint64_t> ToInteger(absl::string_view field, const json& value, uint64_t max) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > max) {
    return Wrong(field, ShowJson(value), absl::StrCat("an integer in [0, ", max, "]"));
  }
  return value.get<uint64_t>();
}

// Reads an integer into `out`; an absent field leaves it as it is, and is refused where `required`.
enum class Presence { kRequired, kOptional };

template <typename Int>
absl::Status ReadInteger(const json& object, const char* field, Presence presence, Int* out) {
  const json* value = Find(object, field);
  if (value == nullptr) {
    return presence == Presence::kOptional ? absl::OkStatus() : Wrong(field, "absent", "given: it has no default");
  }
  PLEIAD_ASSIGN_OR_RETURN(const uint64_t integer, ToInteger(field, *value, std::numeric_limits<Int>::max()));
  *out = static_cast<Int>(integer);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadEos(const json& text, const json& root) {
  const json* value = Find(text, "eos_token_id");
  if (value == nullptr) value = Find(root, "eos_token_id");
  if (value == nullptr) return Wrong("eos_token_id", "absent", "given: it has no default");
  if (value->is_array()) {
    if (value->empty()) return Wrong("eos_token_id", "[]", "an integer or a list that starts with one");
    value = &value->front();
  }
  PLEIAD_ASSIGN_OR_RETURN(const uint64_t eos, ToInteger("eos_token_id", *value, kMaxU32));
  return static_cast<uint32_t>(eos);
}

absl::Status ReadEps(const json& text, float* out) {
  const json* value = Find(text, "rms_norm_eps");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return Wrong("rms_norm_eps", ShowJson(*value), "a number");
  const double eps = value->get<double>();
  // Out of a float's range: Validate refuses it as not finite.
  *out = std::abs(eps) <= std::numeric_limits<float>::max() ? static_cast<float>(eps)
                                                            : std::numeric_limits<float>::infinity();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerIndex>> ReadLayers(const json& text, uint32_t num_hidden_layers) {
  const json* value = Find(text, "ple_layer_ids");
  if (value == nullptr || (value->is_array() && value->empty())) {
    return absl::FailedPreconditionError(
        "config.json: ple_layer_ids is absent or empty; it must name at least one layer: this model has no PLE stage");
  }
  if (!value->is_array()) return Wrong("ple_layer_ids", ShowJson(*value), "a list of integers");
  std::vector<LayerIndex> layers;
  for (const json& id : *value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() < 1 || id.get<uint64_t>() > num_hidden_layers) {
      return Wrong("ple_layer_ids", ShowJson(*value),
                   absl::StrCat("a list of one-based layers in [1, num_hidden_layers ", num_hidden_layers, "], which ",
                                ShowJson(id), " is not"));
    }
    layers.emplace_back(static_cast<uint32_t>(id.get<uint64_t>() - 1));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

// A vision config's token ids stand beside text_config.
absl::Status ReadMediaToken(const json& text, const json& root, const char* field, std::optional<uint32_t>* out) {
  const json* value = Find(root, field);
  if (value == nullptr) value = Find(text, field);
  if (value == nullptr) return absl::OkStatus();
  PLEIAD_ASSIGN_OR_RETURN(const uint64_t id, ToInteger(field, *value, kMaxU32));
  *out = static_cast<uint32_t>(id);
  return absl::OkStatus();
}

absl::Status ValidateGeometry(const Geometry& g) {
  PLEIAD_RETURN_IF_ERROR(CheckRange("hidden_size", g.hidden_size, 1, 1 << 16));
  PLEIAD_RETURN_IF_ERROR(CheckRange("hc_count", g.hc_count, 1, 64));
  PLEIAD_RETURN_IF_ERROR(CheckRange("ple_embed_dim", g.embed_dim, 1, 1 << 16));
  PLEIAD_RETURN_IF_ERROR(CheckRange("ple_conv_kernel_size", g.conv_kernel_size, 1, 64));
  PLEIAD_RETURN_IF_ERROR(CheckRange("ngram_size", g.ngram_size, 2, 8));
  PLEIAD_RETURN_IF_ERROR(CheckRange("heads_per_ngram", g.heads_per_ngram, 1, 64));
  if (g.embed_dim % g.heads() != 0) {
    return Wrong("ple_embed_dim", absl::StrCat(g.embed_dim),
                 absl::StrCat("divisible by (ngram_size - 1) * heads_per_ngram = ", g.heads()));
  }
  PLEIAD_RETURN_IF_ERROR(CheckRange("hc_count * hidden_size", uint64_t{g.hc_count} * g.hidden_size, 1, 1 << 20));
  PLEIAD_RETURN_IF_ERROR(CheckRange("bytes of carry (ple_conv_kernel_size, ngram_size, hc_count, hidden_size)",
                                    g.aux_bytes(), 1, kMaxAuxBytes));
  if (!std::isfinite(g.rms_norm_eps) || g.rms_norm_eps <= 0 || g.rms_norm_eps > 1) {
    return Wrong("rms_norm_eps", absl::StrCat(g.rms_norm_eps), "finite, above 0 (as a 32-bit float) and at most 1");
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<LayerOrdinal> ModelConfig::Ordinal(LayerIndex layer) const {
  const auto it = std::lower_bound(ple_layers.begin(), ple_layers.end(), layer);
  if (it == ple_layers.end() || *it != layer) return std::nullopt;
  return LayerOrdinal(static_cast<uint32_t>(it - ple_layers.begin()));
}

absl::Status ModelConfig::Validate() const {
  PLEIAD_RETURN_IF_ERROR(ValidateGeometry(geometry));
  PLEIAD_RETURN_IF_ERROR(CheckRange("num_hidden_layers", num_hidden_layers, 1, 4096));
  PLEIAD_RETURN_IF_ERROR(CheckRange("vocab_size", vocab_size, 1, (uint64_t{1} << 31) - 1));
  if (eos_token_id >= vocab_size) {
    return Wrong("eos_token_id", absl::StrCat(eos_token_id), absl::StrCat("below vocab_size ", vocab_size));
  }
  PLEIAD_RETURN_IF_ERROR(CheckRange("ngram_vocab_size_base", ngram_vocab_size_base, 2, uint64_t{1} << 40));
  PLEIAD_RETURN_IF_ERROR(CheckRange("make_ngram_vocab_size_divisible_by", ngram_vocab_divisor, 1, 1 << 20));
  if (ple_layers.empty()) return absl::FailedPreconditionError("config.json: ple_layer_ids names no layer");
  for (size_t i = 0; i < ple_layers.size(); ++i) {
    const uint64_t id = uint64_t{ple_layers[i].value()} + 1;
    PLEIAD_RETURN_IF_ERROR(CheckRange("an entry of ple_layer_ids", id, 1, num_hidden_layers));
    if (i > 0 && ple_layers[i] <= ple_layers[i - 1]) {
      return Wrong("ple_layer_ids", absl::StrCat("out of order at ", id), "ascending without duplicates");
    }
  }
  if (image_token_id && *image_token_id >= vocab_size) {
    return Wrong("image_token_id", absl::StrCat(*image_token_id), absl::StrCat("below vocab_size ", vocab_size));
  }
  if (video_token_id && *video_token_id >= vocab_size) {
    return Wrong("video_token_id", absl::StrCat(*video_token_id), absl::StrCat("below vocab_size ", vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json_text, std::optional<uint32_t> eos_override) {
  PLEIAD_ASSIGN_OR_RETURN(const json root, ParseJson({json_text.data(), json_text.size()}, "config.json"));
  if (!root.is_object()) return Wrong("the document", ShowJson(root), "an object");
  const json* nested = Find(root, "text_config");
  if (nested != nullptr && !nested->is_object()) return Wrong("text_config", ShowJson(*nested), "an object");
  const json& fields = nested != nullptr ? *nested : root;

  ModelConfig config;
  Geometry& g = config.geometry;
  const auto required = [&](const char* field, auto* out) {
    return ReadInteger(fields, field, Presence::kRequired, out);
  };
  const auto optional = [&](const char* field, auto* out) {
    return ReadInteger(fields, field, Presence::kOptional, out);
  };
  PLEIAD_RETURN_IF_ERROR(required("hidden_size", &g.hidden_size));
  PLEIAD_RETURN_IF_ERROR(required("vocab_size", &config.vocab_size));
  PLEIAD_RETURN_IF_ERROR(required("num_hidden_layers", &config.num_hidden_layers));
  PLEIAD_RETURN_IF_ERROR(optional("hc_count", &g.hc_count));
  g.embed_dim = g.hidden_size;
  PLEIAD_RETURN_IF_ERROR(optional("ple_embed_dim", &g.embed_dim));
  PLEIAD_RETURN_IF_ERROR(optional("ple_conv_kernel_size", &g.conv_kernel_size));
  PLEIAD_RETURN_IF_ERROR(optional("ngram_size", &g.ngram_size));
  PLEIAD_RETURN_IF_ERROR(optional("heads_per_ngram", &g.heads_per_ngram));
  PLEIAD_RETURN_IF_ERROR(optional("ngram_vocab_size_base", &config.ngram_vocab_size_base));
  PLEIAD_RETURN_IF_ERROR(optional("make_ngram_vocab_size_divisible_by", &config.ngram_vocab_divisor));
  PLEIAD_RETURN_IF_ERROR(optional("seed", &config.seed));
  PLEIAD_RETURN_IF_ERROR(ReadEps(fields, &g.rms_norm_eps));
  if (eos_override.has_value()) {
    config.eos_token_id = *eos_override;
  } else {
    PLEIAD_ASSIGN_OR_RETURN(config.eos_token_id, ReadEos(fields, root));
  }
  PLEIAD_RETURN_IF_ERROR(ReadMediaToken(fields, root, "image_token_id", &config.image_token_id));
  PLEIAD_RETURN_IF_ERROR(ReadMediaToken(fields, root, "video_token_id", &config.video_token_id));
  PLEIAD_ASSIGN_OR_RETURN(config.ple_layers, ReadLayers(fields, config.num_hidden_layers));
  PLEIAD_RETURN_IF_ERROR(config.Validate());
  return config;
}

}  // namespace pleiad
