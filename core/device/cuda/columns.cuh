// A thread's share of a row: 8 columns, loaded and stored 16 bytes at a time where the shape allows it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace pleiad::cuda {

inline constexpr uint32_t kColumns = 8;  // of a thread

struct Eight {
  float v[kColumns];
};

__device__ inline float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float High(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ inline Eight Widen(const uint4& h) {
  return {{Low(h.x), High(h.x), Low(h.y), High(h.y), Low(h.z), High(h.z), Low(h.w), High(h.w)}};
}

__device__ inline Eight AsFloats(const uint4& a, const uint4& b) {
  return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w), __uint_as_float(b.x),
           __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)}};
}

__device__ inline uint32_t RoundPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A thread's columns of a row: `count` of 8, zeros behind. 8 or none, aligned to 16 bytes, with `vectors`; in odd
// shapes element by element.
struct Columns {
  uint32_t count;
  bool vectors;
};

__device__ inline uint4 LoadBf16(const uint16_t* row, Columns columns) {
  uint4 out{0, 0, 0, 0};
  if (columns.vectors) {
    if (columns.count > 0) out = *reinterpret_cast<const uint4*>(row);
  } else {
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      if (i < columns.count) words[i / 2] |= uint32_t{row[i]} << (i % 2 * 16);
    }
    out = {words[0], words[1], words[2], words[3]};
  }
  return out;
}

__device__ inline void LoadF32(const float* row, Columns columns, uint4& a, uint4& b) {
  a = b = uint4{0, 0, 0, 0};
  if (columns.vectors) {
    if (columns.count > 0) {
      a = __ldcs(reinterpret_cast<const uint4*>(row));
      b = __ldcs(reinterpret_cast<const uint4*>(row) + 1);
    }
  } else {
    uint32_t words[kColumns];
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) words[i] = i < columns.count ? __float_as_uint(row[i]) : 0;
    a = {words[0], words[1], words[2], words[3]};
    b = {words[4], words[5], words[6], words[7]};
  }
}

__device__ inline void StoreF32(float* row, Columns columns, const Eight& value) {
  if (columns.vectors) {
    if (columns.count == 0) return;
    __stcs(reinterpret_cast<float4*>(row), float4{value.v[0], value.v[1], value.v[2], value.v[3]});
    __stcs(reinterpret_cast<float4*>(row) + 1, float4{value.v[4], value.v[5], value.v[6], value.v[7]});
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      if (i < columns.count) row[i] = value.v[i];
    }
  }
}

__device__ inline void StoreBf16(uint16_t* row, Columns columns, const Eight& value) {
  uint32_t words[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) words[i] = RoundPair(value.v[2 * i], value.v[2 * i + 1]);
  if (columns.vectors) {
    if (columns.count > 0) __stcs(reinterpret_cast<uint4*>(row), uint4{words[0], words[1], words[2], words[3]});
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      if (i < columns.count) row[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

}  // namespace pleiad::cuda
