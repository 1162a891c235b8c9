// One piece of a row: where the gather index says it lies, decoded to BF16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {

inline constexpr uint32_t kStagingBit = 0x80000000u;

// Value `at` of the row that `index` names.
template <bool kF8>
__device__ const std::byte* RowPiece(const GatherArgs& args, uint32_t index, uint32_t at) {
  const std::byte* rows = (index & kStagingBit) != 0 ? args.staging : args.arena;
  return rows + (uint64_t{index & ~kStagingBit} * args.head_dim + at) * (kF8 ? 1 : 2);
}

// 8 values from a multiple of 8 on, as BF16. `decode` has the 256 values of E4M3.
template <bool kF8>
__device__ uint4 EightValues(const GatherArgs& args, uint32_t index, uint32_t at, const uint16_t* decode) {
  const std::byte* from = RowPiece<kF8>(args, index, at);
  if constexpr (kF8) {
    const uint2 codes = __ldcs(reinterpret_cast<const uint2*>(from));
    const auto pair = [&](uint32_t low, uint32_t high) { return decode[low] | uint32_t{decode[high]} << 16; };
    return {pair(codes.x & 0xFF, codes.x >> 8 & 0xFF), pair(codes.x >> 16 & 0xFF, codes.x >> 24),
            pair(codes.y & 0xFF, codes.y >> 8 & 0xFF), pair(codes.y >> 16 & 0xFF, codes.y >> 24)};
  } else {
    return __ldcs(reinterpret_cast<const uint4*>(from));
  }
}

}  // namespace pleiad::cuda
