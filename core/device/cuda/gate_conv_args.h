// What a model's shape and the GPU decide of a launch of gate_conv.
#pragma once

#include <cmath>

#include "core/device/cuda/kernels.h"
#include "core/model/geometry.h"

namespace pleiad::cuda {

// The rest is the batch's: header, items, key_value, layer, carries, gates.
inline GateConvArgs GateConvArgsOf(const Geometry& geometry, const GateConvSetup& setup) {
  GateConvArgs args;
  args.hidden = geometry.hidden_size;
  args.streams = geometry.hc_count;
  args.dilation = geometry.dilation();
  args.taps = geometry.conv_kernel_size;
  args.eps = geometry.rms_norm_eps;
  args.inverse_hidden = 1.0f / static_cast<float>(geometry.hidden_size);
  args.inverse_root_hidden = 1.0f / std::sqrt(static_cast<float>(geometry.hidden_size));
  args.fast = setup.fast;
  args.early_start = setup.early_start;
  return args;
}

}  // namespace pleiad::cuda
