// The loops of the stage over one token, one stream or a tile of weights, one set per instruction set. Each sums in
// one fixed order, which depends on nothing but the widths (E, H), so a result does not depend on batch, cutting or
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/numeric.h"
#include "core/device/cpu/isa.h"

namespace pleiad {

// y[t, r] = bf16(sum_i weights[r, i] * e[t, i]), FP32 accumulation.
struct DotArgs {
  const Bf16* weights = nullptr;  // [rows, embed]
  size_t embed = 0;               // E
  const float* e = nullptr;       // [tokens, padded], from widen_for_dot
  size_t padded = 0;
  size_t tokens = 0;
  Bf16* y = nullptr;  // [tokens, y_stride]
  size_t y_stride = 0;
};

// One row of a highway tensor; null data reads as zeros.
struct HighwayRow {
  const std::byte* data = nullptr;  // any alignment
  DType dtype = DType::kF32;        // kF32 or kBf16
};

// One stream of one token; all of width H.
struct GateArgs {
  const Bf16* key = nullptr;
  const Bf16* value = nullptr;
  HighwayRow highway;
  const float* norm_key = nullptr;    // 1 + w
  const float* norm_query = nullptr;  // 1 + w
  size_t hidden = 0;
  float eps = 0;
};

// u = g * v and x = u * r * (1 + norm_conv).
struct GateScalars {
  float g = 0;
  float r = 0;
};

// Where one tap of the conv finds its x: a row as stored (x set), or value row and scalars of a token of this batch.
struct ConvTap {
  const float* weights = nullptr;
  const float* x = nullptr;
  const Bf16* value = nullptr;
  GateScalars gate;
};

// One stream of one token; all of width H. The last tap is the token itself.
struct ConvArgs {
  const ConvTap* taps = nullptr;  // oldest first; missing rows left out
  size_t num_taps = 0;
  const float* norm_conv = nullptr;  // 1 + w
  float* ring_row = nullptr;         // gets x unless null
  HighwayRow highway;                // added unless null
  std::byte* output = nullptr;       // any alignment; may be the highway's own row
  DType output_dtype = DType::kF32;  // kF32 or kBf16
  size_t hidden = 0;
};

struct CpuKernels {
  // Rows [row_begin, row_end).
  void (*dot)(const DotArgs& args, size_t row_begin, size_t row_end);
  // e [embed] for `dot`: in FP32, in the order it reads, zeros up to DotPadding(embed).
  void (*widen_for_dot)(const Bf16* e, size_t embed, float* out);
  void (*widen)(const Bf16* in, size_t n, float* out);
  void (*round)(const float* in, size_t n, Bf16* out);
  GateScalars (*gate)(const GateArgs& args);
  void (*conv)(const ConvArgs& args);
  // e^x as silu uses it, within 2 ulp; results under the smallest normal number are 0.
  void (*exp)(const float* in, size_t n, float* out);
};

// Room for e of `dot`, in floats.
constexpr size_t DotPadding(size_t embed) { return (embed + 31) / 32 * 32; }

const CpuKernels& KernelsFor(Isa isa);

const CpuKernels& PortableKernels();
#if defined(__x86_64__)
const CpuKernels& Avx2Kernels();
const CpuKernels& Avx512Kernels();
#endif

}  // namespace pleiad
