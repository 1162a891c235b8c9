// Dense weights of one layer in device memory, as the kernels read them.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/owners.h"
#include "core/model/geometry.h"
#include "core/model/layer_weights.h"

namespace pleiad::cuda {

class LayerMemory {
 public:
  // Blocks until the weights are on the device. `f8_scale` of E4M3 rows. ResourceExhausted when memory cannot be had.
  static absl::StatusOr<LayerMemory> Create(const Geometry& geometry, const LayerWeights& weights,
                                            std::optional<float> f8_scale);

  LayerPointers pointers() const;
  uint64_t bytes() const;

 private:
  DeviceMemoryBlock key_value_;       // BF16 [C + H, E]
  DeviceMemoryBlock norm_key_query_;  // FP32 [C]
  DeviceMemoryBlock norm_conv_;       // FP32 [C]
  DeviceMemoryBlock taps_;            // BF16 [K, C]
  DeviceMemoryBlock f8_decode_;       // BF16 [256]
};

}  // namespace pleiad::cuda
