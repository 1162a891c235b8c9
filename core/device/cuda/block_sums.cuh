// Four sums over a block in one fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pleiad::cuda {

inline constexpr uint32_t kSumsOfWarp = 4;

// The sums of this thread's warp go to to[warp], each written by one lane, which gets true. Lanes first swap halves so
// that each reduces one of the four: 6 shuffles, not 20.
__device__ inline bool WarpSums(float4 part, float4* to) {
  const uint32_t lane = threadIdx.x % 32;
  const bool upper = (lane & 16) != 0;
  float low = upper ? part.y : part.x;
  float high = upper ? part.w : part.z;
  low += __shfl_xor_sync(0xFFFFFFFFu, upper ? part.x : part.y, 16);
  high += __shfl_xor_sync(0xFFFFFFFFu, upper ? part.z : part.w, 16);
  const bool odd = (lane & 8) != 0;
  float sum = odd ? high : low;
  sum += __shfl_xor_sync(0xFFFFFFFFu, odd ? low : high, 8);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  const bool writes = lane % 8 == 0;
  if (writes) reinterpret_cast<float*>(to)[threadIdx.x / 32 * 4 + (lane >> 4) + (lane >> 3 & 1) * 2] = sum;
  return writes;
}

// After a barrier: the sums of all `warps` <= 16, in the lanes below kReaders, which alone read: lane i begins with
// warps i and i + kReaders.
inline constexpr uint32_t kReaders = 8;
__device__ inline float4 SumsOfWarpsBelow(const float4* from, uint32_t warps) {
  const uint32_t lane = threadIdx.x % 32;
  float4 sum{0, 0, 0, 0};
  if (lane < kReaders) {
    if (lane < warps) sum = from[lane];
    if (lane + kReaders < warps) {
      const float4 more = from[lane + kReaders];
      sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
  }
#pragma unroll
  for (uint32_t distance = 1; distance < kReaders; distance *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, distance);
    sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, distance);
    sum.z += __shfl_xor_sync(0xFFFFFFFFu, sum.z, distance);
    sum.w += __shfl_xor_sync(0xFFFFFFFFu, sum.w, distance);
  }
  return sum;
}

// The same of `warps` <= 32, in every thread, to the bit. Lane 4i + j adds sum j of warps i, i + 8, ...
__device__ inline float4 SumsOfWarps(const float4* from, uint32_t warps) {
  const uint32_t lane = threadIdx.x % 32;
  float sum = 0;
  for (uint32_t w = lane / 4; w < warps; w += 8) sum += reinterpret_cast<const float*>(from)[w * 4 + lane % 4];
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
  return {__shfl_sync(0xFFFFFFFFu, sum, 0), __shfl_sync(0xFFFFFFFFu, sum, 1), __shfl_sync(0xFFFFFFFFu, sum, 2),
          __shfl_sync(0xFFFFFFFFu, sum, 3)};
}

}  // namespace pleiad::cuda
