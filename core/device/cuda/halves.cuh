// A warp's 256 columns: lane i works on columns 4i to 4i + 3 of either half, so that FP32 goes in and out 16 bytes a
// lane, side by side.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/device/cuda/columns.cuh"

namespace pleiad::cuda {

inline constexpr uint32_t kHalf = 128;

// Columns of this thread: `row` points at the first, the others lie kHalf further.
__device__ inline uint4 LoadHalves(const uint16_t* row) {
  const uint2 low = *reinterpret_cast<const uint2*>(row);
  const uint2 high = *reinterpret_cast<const uint2*>(row + kHalf);
  return {low.x, low.y, high.x, high.y};
}

__device__ inline Eight LoadHalves(const float* row) {
  return AsFloats(*reinterpret_cast<const uint4*>(row), *reinterpret_cast<const uint4*>(row + kHalf));
}

__device__ inline void StoreHalves(float* row, const Eight& value) {
  __stcs(reinterpret_cast<float4*>(row), float4{value.v[0], value.v[1], value.v[2], value.v[3]});
  __stcs(reinterpret_cast<float4*>(row + kHalf), float4{value.v[4], value.v[5], value.v[6], value.v[7]});
}

__device__ inline void StoreHalves(uint16_t* row, const Eight& value) {
  __stcs(reinterpret_cast<uint2*>(row), uint2{RoundPair(value.v[0], value.v[1]), RoundPair(value.v[2], value.v[3])});
  __stcs(reinterpret_cast<uint2*>(row + kHalf),
         uint2{RoundPair(value.v[4], value.v[5]), RoundPair(value.v[6], value.v[7])});
}

// A kernel that was started early goes on when the one before it is done and its writes are seen.
__device__ inline void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace pleiad::cuda
