#include "core/device/device.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/cpu/isa.h"
#include "core/device/cpu/stage.h"
#include "core/device/plan_check.h"

namespace pleiad {
namespace {

template <typename Value>
absl::Status Bad(absl::string_view field, const Value& value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": ", rule));
}

absl::Status CheckGeometry(const Geometry& g) {
  if (g.hidden_size == 0) return Bad("hidden_size", g.hidden_size, "must be positive");
  if (g.hc_count == 0) return Bad("hc_count", g.hc_count, "must be positive");
  if (uint64_t{g.hc_count} * g.hidden_size > (1u << 20)) {
    return Bad("hc_count * hidden_size", uint64_t{g.hc_count} * g.hidden_size, "must be <= 1048576");
  }
  if (g.conv_kernel_size == 0 || g.conv_kernel_size > Stage::kMaxTaps) {
    return Bad("conv_kernel_size", g.conv_kernel_size, absl::StrCat("must be in [1, ", Stage::kMaxTaps, "]"));
  }
  if (g.ngram_size < 2 || g.ngram_size > 64) return Bad("ngram_size", g.ngram_size, "must be in [2, 64]");
  if (g.heads_per_ngram == 0 || g.heads_per_ngram > 64) {
    return Bad("heads_per_ngram", g.heads_per_ngram, "must be in [1, 64]");
  }
  if (g.embed_dim == 0 || g.embed_dim > (1u << 20) || g.embed_dim % g.heads() != 0) {
    return Bad("embed_dim", g.embed_dim, absl::StrCat("must be in [1, 1048576] and a multiple of heads = ", g.heads()));
  }
  if (!(g.rms_norm_eps >= 0) || !std::isfinite(g.rms_norm_eps)) {
    return Bad("rms_norm_eps", g.rms_norm_eps, "must be finite and not negative");
  }
  return absl::OkStatus();
}

absl::Status CheckSize(absl::string_view tensor, size_t layer, size_t size, uint64_t expected) {
  if (size == expected) return absl::OkStatus();
  return Bad(absl::StrCat("weights[", layer, "].", tensor, ".size"), size, absl::StrCat("must be ", expected));
}

absl::Status CheckWeights(const Geometry& g, const std::vector<LayerWeights>& weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const LayerWeights& layer = weights[i];
    const uint64_t channels = g.channels();
    PLEIAD_RETURN_IF_ERROR(CheckSize("key_value", i, layer.key_value.size(), (channels + g.hidden_size) * g.embed_dim));
    PLEIAD_RETURN_IF_ERROR(CheckSize("norm_key", i, layer.norm_key.size(), channels));
    PLEIAD_RETURN_IF_ERROR(CheckSize("norm_query", i, layer.norm_query.size(), channels));
    PLEIAD_RETURN_IF_ERROR(CheckSize("norm_conv", i, layer.norm_conv.size(), channels));
    PLEIAD_RETURN_IF_ERROR(CheckSize("conv", i, layer.conv.size(), channels * g.conv_kernel_size));
  }
  return absl::OkStatus();
}

absl::Status CheckRowHashes(const DeviceOptions& options, size_t layers) {
  if (options.row_hashes.empty()) return absl::OkStatus();
  if (options.row_hashes.size() != layers) {
    return Bad("row_hashes.size", options.row_hashes.size(), absl::StrCat("must be ", layers, ", or 0"));
  }
  for (const RowHash& hash : options.row_hashes) {
    const Geometry& g = options.geometry;
    if (hash.hasher.heads() != g.heads() || hash.hasher.context_len() != g.context_len()) {
      return Bad("row_hashes.heads", hash.hasher.heads(),
                 absl::StrCat("must be ", g.heads(), ", over ", g.context_len(), " ids before a token"));
    }
    const uint64_t end = uint64_t{hash.first_slot.value()} + hash.hasher.constants().usable_rows;
    if (end > options.arena_slots) {
      return Bad("row_hashes.first_slot", hash.first_slot.value(),
                 absl::StrCat("its rows end at ", end, ": must be <= arena_slots = ", options.arena_slots));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ClientMemory>> Device::Import(const ClientMemoryHandles&) {
  return absl::UnimplementedError(absl::StrCat("device ", info().name, ": has no memory that clients can share"));
}

absl::StatusOr<std::shared_ptr<ClientMemory>> Device::ImportFile(int, uint64_t, uint64_t, std::shared_ptr<void>) {
  return absl::UnimplementedError(absl::StrCat("device ", info().name, ": reads no files of clients"));
}

absl::Status DeviceOptions::Validate() const {
  PLEIAD_RETURN_IF_ERROR(CheckGeometry(geometry));
  if (row_dtype != DType::kBf16 && row_dtype != DType::kF8E4M3) {
    return Bad("row_dtype", Name(row_dtype), "must be BF16 or F8_E4M3");
  }
  if (row_dtype == DType::kF8E4M3) {
    if (row_scales.empty()) return Bad("row_scales.size", 0, "must be one per layer for F8_E4M3 rows");
    for (float scale : row_scales) {
      if (!std::isfinite(scale) || scale == 0) return Bad("row_scales", scale, "must be finite and not 0");
    }
  }
  if (arena_slots >= GatherIndex::kLimit) {
    return Bad("arena_slots", arena_slots, absl::StrCat("must be < ", GatherIndex::kLimit));
  }
  if (staging_rows >= GatherIndex::kLimit) {
    return Bad("staging_rows", staging_rows, absl::StrCat("must be < ", GatherIndex::kLimit));
  }
  if (carries >= kNoCarry.value()) return Bad("carries", carries, absl::StrCat("must be < ", kNoCarry.value()));
  if (rollback_tokens > (1u << 20)) return Bad("rollback_tokens", rollback_tokens, "must be <= 1048576");
  if (max_tokens == 0 || max_tokens > (1u << 24)) return Bad("max_tokens", max_tokens, "must be in [1, 16777216]");
  if (threads > 4096) return Bad("threads", threads, "must be <= 4096");
  if (!cpu_isa.empty() && !ParseIsa(cpu_isa)) {
    return Bad("cpu_isa", cpu_isa, "must be portable, avx2, avx512 or avx512_bf16");
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const DeviceOptions& options, const std::vector<LayerWeights>& weights) {
  PLEIAD_RETURN_IF_ERROR(options.Validate());
  if (weights.empty()) return Bad("weights.size", 0, "must be one per layer");
  if (options.row_dtype == DType::kF8E4M3 && options.row_scales.size() != weights.size()) {
    return Bad("row_scales.size", options.row_scales.size(), absl::StrCat("must be ", weights.size()));
  }
  PLEIAD_RETURN_IF_ERROR(CheckRowHashes(options, weights.size()));
  return CheckWeights(options.geometry, weights);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const DeviceOptions& options,
                                                        std::vector<LayerWeights> weights) {
  PLEIAD_RETURN_IF_ERROR(CheckDevice(options, weights));
  DeviceOptions own = options;
  own.row_hashes.clear();  // it gathers what a plan names
  return CpuDevice::Create(own, std::move(weights));
}

}  // namespace pleiad
