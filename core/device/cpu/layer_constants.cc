#include "core/device/cpu/layer_constants.h"

#include <cstring>

#include "core/base/status_macros.h"

namespace pleiad {
namespace {

std::vector<float> OnePlus(const std::vector<Bf16>& w) {
  std::vector<float> out;
  out.reserve(w.size());
  for (Bf16 bits : w) out.push_back(1.0f + Bf16ToFloat(bits));
  return out;
}

}  // namespace

absl::StatusOr<LayerConstants> MakeLayerConstants(const Geometry& geometry, LayerWeights weights) {
  LayerConstants constants;
  const size_t bytes = weights.key_value.size() * sizeof(Bf16);
  // Large pages: one token reads all of it, at the speed of memory.
  PLEIAD_ASSIGN_OR_RETURN(constants.key_value, HostMemory::Allocate("dense weights", bytes, HugePages::kAdvise));
  std::memcpy(constants.key_value.data(), weights.key_value.data(), bytes);
  constants.norm_key = OnePlus(weights.norm_key);
  constants.norm_query = OnePlus(weights.norm_query);
  constants.norm_conv = OnePlus(weights.norm_conv);
  const size_t channels = geometry.channels();
  const size_t kernel = geometry.conv_kernel_size;
  constants.taps.resize(kernel * channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t j = 0; j < kernel; ++j) constants.taps[j * channels + c] = Bf16ToFloat(weights.conv[c * kernel + j]);
  }
  return constants;
}

}  // namespace pleiad
