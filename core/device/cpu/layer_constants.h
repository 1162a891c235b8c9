// Dense weights of one layer as the kernels read them.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/host_memory.h"
#include "core/base/numeric.h"
#include "core/model/geometry.h"
#include "core/model/layer_weights.h"

namespace pleiad {

struct LayerConstants {
  HostMemory key_value;           // BF16 [C + H, E]
  std::vector<float> norm_key;    // [C], 1 + w
  std::vector<float> norm_query;  // [C], 1 + w
  std::vector<float> norm_conv;   // [C], 1 + w
  std::vector<float> taps;        // [K, C]

  uint64_t bytes() const {
    return key_value.size() + (norm_key.size() + norm_query.size() + norm_conv.size() + taps.size()) * sizeof(float);
  }
};

// `weights` has the shapes of `geometry`. ResourceExhausted when memory cannot be had.
absl::StatusOr<LayerConstants> MakeLayerConstants(const Geometry& geometry, LayerWeights weights);

}  // namespace pleiad
