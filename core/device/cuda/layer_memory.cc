#include "core/device/cuda/layer_memory.h"

#include <array>
#include <vector>

#include "absl/types/span.h"
#include "core/base/numeric.h"
#include "core/base/status_macros.h"

namespace pleiad::cuda {
namespace {

template <typename T>
absl::StatusOr<DeviceMemoryBlock> ToDevice(absl::Span<const T> values) {
  const uint64_t bytes = values.size() * sizeof(T);
  PLEIAD_ASSIGN_OR_RETURN(DeviceMemoryBlock block, AllocateDevice("dense weights", bytes));
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaMemcpy(block.data(), values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy of weights"));
  return block;
}

}  // namespace

absl::StatusOr<LayerMemory> LayerMemory::Create(const Geometry& geometry, const LayerWeights& weights,
                                                std::optional<float> f8_scale) {
  const size_t channels = geometry.channels();
  const size_t kernel = geometry.conv_kernel_size;
  std::vector<float> norm_key_query(channels);
  std::vector<float> norm_conv(channels);
  std::vector<Bf16> taps(channels * kernel);
  for (size_t c = 0; c < channels; ++c) {
    norm_key_query[c] = (1.0f + Bf16ToFloat(weights.norm_key[c])) * (1.0f + Bf16ToFloat(weights.norm_query[c]));
    norm_conv[c] = 1.0f + Bf16ToFloat(weights.norm_conv[c]);
    for (size_t j = 0; j < kernel; ++j) taps[j * channels + c] = weights.conv[c * kernel + j];
  }
  LayerMemory layer;
  PLEIAD_ASSIGN_OR_RETURN(layer.key_value_, ToDevice(absl::MakeConstSpan(weights.key_value)));
  PLEIAD_ASSIGN_OR_RETURN(layer.norm_key_query_, ToDevice(absl::MakeConstSpan(norm_key_query)));
  PLEIAD_ASSIGN_OR_RETURN(layer.norm_conv_, ToDevice(absl::MakeConstSpan(norm_conv)));
  PLEIAD_ASSIGN_OR_RETURN(layer.taps_, ToDevice(absl::MakeConstSpan(taps)));
  if (f8_scale) {
    const std::array<Bf16, 256> decode = F8DecodeTable(*f8_scale);
    PLEIAD_ASSIGN_OR_RETURN(layer.f8_decode_, ToDevice(absl::MakeConstSpan(decode)));
  }
  return layer;
}

LayerPointers LayerMemory::pointers() const {
  return {key_value_.As<const uint16_t>(), norm_key_query_.As<const float>(), norm_conv_.As<const float>(),
          taps_.As<const uint16_t>(), f8_decode_.As<const uint16_t>()};
}

uint64_t LayerMemory::bytes() const {
  return key_value_.size() + norm_key_query_.size() + norm_conv_.size() + taps_.size() + f8_decode_.size();
}

}  // namespace pleiad::cuda
