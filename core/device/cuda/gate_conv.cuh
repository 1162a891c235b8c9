// What the gate_conv kernels share: the gate's scalars and how they pass from block to block, conv rows, the output.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {

inline constexpr uint32_t kFastHidden = 2560;

cudaError_t LaunchGateConvFast(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream);
cudaError_t LaunchGateConvOnce(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream);
// Before the first launch. Sets `fast` where the GPU has the shared memory, and then the rest.
cudaError_t PrepareGateConvFast(GateConvSetup* setup, int* blocks_per_multiprocessor);

struct Gate {
  float g;
  float gr;  // g * r
};

// This thread's share of the four sums a gate is made from.
__device__ inline float4 GateParts(const Eight& k, const Eight& q, const Eight& v, const Eight& norm_key_query) {
  float4 part{0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < kColumns; ++i) {
    part.x += k.v[i] * k.v[i];
    part.y += q.v[i] * q.v[i];
    part.z += k.v[i] * q.v[i] * norm_key_query.v[i];
    part.w += v.v[i] * v.v[i];
  }
  return part;
}

// From the sums of k^2, q^2, k q (1 + norm_key) (1 + norm_query) and v^2.
__device__ inline Gate GateOf(float4 sums, const GateConvArgs& args) {
  const float s = sums.z * rsqrtf(sums.x * args.inverse_hidden + args.eps) *
                  rsqrtf(sums.y * args.inverse_hidden + args.eps) * args.inverse_root_hidden;
  // Comparisons with NaN are false, so NaN is kept.
  const float root = sqrtf(fabsf(s) < 1e-6f ? 1e-6f : fabsf(s));
  const float signed_root = s == 0 ? 0.0f : copysignf(root, s);
  Gate gate;
  gate.g = s != s ? s : __fdividef(1.0f, 1.0f + __expf(-signed_root));
  gate.gr = gate.g * rsqrtf(gate.g * gate.g * (sums.w * args.inverse_hidden) + args.eps);
  return gate;
}

__device__ inline void Publish(ChainGate* gate, float gr, uint32_t stamp) {
  const uint64_t word = uint64_t{stamp} << 32 | __float_as_uint(gr);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(gate), "l"(word) : "memory");
}

// The scalar and its stamp are one word, so the word that is seen is whole.
__device__ inline float Await(const ChainGate* gate, uint32_t stamp) {
  uint64_t word;
  do {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(gate) : "memory");
  } while (static_cast<uint32_t>(word >> 32) != stamp);
  return __uint_as_float(static_cast<uint32_t>(word));
}

// x = v * gr * (1 + w), one rounding each: the same bits wherever a row is made.
__device__ inline Eight ConvRow(const Eight& v, float gr, const Eight& norm_conv) {
  Eight x;
#pragma unroll
  for (uint32_t i = 0; i < kColumns; ++i) x.v[i] = __fmul_rn(__fmul_rn(v.v[i], gr), norm_conv.v[i]);
  return x;
}

// The conv's sums over the taps, oldest first, as far as they are known: each token adds its part to those to come.
template <int kTaps>
class ConvSums {
 public:
  // Of a token with nothing before it.
  __device__ ConvSums() {
#pragma unroll
    for (int j = 0; j < kPending; ++j) sums_[j] = Eight{};
  }
  // past[j] lies j + 1 dilations back.
  __device__ ConvSums(const uint4 (&taps)[kTaps], const Eight* past) : ConvSums() {
#pragma unroll
    for (int j = kTaps - 2; j >= 0; --j) Add(taps, past[j]);
  }
  // c of the token whose row is x.
  __device__ Eight Take(const uint4 (&taps)[kTaps], const Eight& x) {
    const Eight w = Widen(taps[kTaps - 1]);
    Eight c;
#pragma unroll
    for (uint32_t e = 0; e < kColumns; ++e) {
      c.v[e] = __fmaf_rn(w.v[e], x.v[e], kTaps > 1 ? sums_[0].v[e] : 0.0f);
    }
    Add(taps, x);
    return c;
  }

 private:
  static constexpr int kPending = kTaps > 1 ? kTaps - 1 : 1;

  __device__ void Add(const uint4 (&taps)[kTaps], const Eight& x) {
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) {
      const Eight w = Widen(taps[kTaps - 2 - j]);
#pragma unroll
      for (uint32_t e = 0; e < kColumns; ++e) {
        sums_[j].v[e] = __fmaf_rn(w.v[e], x.v[e], j + 2 < kTaps ? sums_[j + 1].v[e] : 0.0f);
      }
    }
  }

  Eight sums_[kPending];  // of the next token, of the one after it, ...
};

// u + silu(c)
__device__ inline Eight Delta(const Eight& c, const Eight& v, float g) {
  Eight out;
#pragma unroll
  for (uint32_t e = 0; e < kColumns; ++e) {
    out.v[e] = g * v.v[e] + __fdividef(c.v[e], 1.0f + __expf(-c.v[e]));
  }
  return out;
}

// The row of the carry `back` tokens before the item's first, [C]; null where it lies in the batch or nowhere.
__device__ inline const float* CarryRow(const CarryMemory& carries, const ChainItem& item, uint32_t back) {
  if (back <= item.local || (item.flags & kHasCarry) == 0 || back - item.local > item.valid) return nullptr;
  const uint32_t steps = back - item.local;
  const uint32_t row = (item.flags & kFromUndo) != 0 ? carries.ring_rows + carries.state_len - steps
                                                     : (item.cursor + carries.ring_rows - steps) % carries.ring_rows;
  return carries.rows + (uint64_t{item.carry} * (carries.ring_rows + carries.state_len) + row) * carries.channels;
}

// Where a token's row is kept, [C]; null: nowhere. The ring may be written at once: a short step's rows miss all it
// reads, a long step reads undo rows.
__device__ inline float* RingRow(const CarryMemory& carries, const ChainItem& item, uint32_t local) {
  if ((item.flags & kHasCarry) == 0 || local + carries.ring_rows < item.num_tokens) return nullptr;
  const uint32_t row = (item.cursor + local) % carries.ring_rows;
  return carries.rows + (uint64_t{item.carry} * (carries.ring_rows + carries.state_len) + row) * carries.channels;
}

}  // namespace pleiad::cuda
