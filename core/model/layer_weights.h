// Dense weights of one PLE layer, in host memory.
#pragma once

#include <vector>

#include "core/base/numeric.h"

namespace pleiad {

struct LayerWeights {
  std::vector<Bf16> key_value;   // [C + H, E]: key_proj over value_proj
  std::vector<Bf16> norm_key;    // [C], stored as w, applied as 1 + w
  std::vector<Bf16> norm_query;  // [C]
  std::vector<Bf16> norm_conv;   // [C]
  std::vector<Bf16> conv;        // [C, K], tap 0 is the oldest
};

}  // namespace pleiad
