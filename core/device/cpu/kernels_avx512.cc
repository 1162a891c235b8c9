// Kernels for AVX-512: vectors of sixteen floats.
#if defined(__x86_64__)

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/device/cpu/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

namespace pleiad {
namespace {

constexpr size_t kLanes = 16;

#include "core/device/cpu/kernels.inc"

}  // namespace

const CpuKernels& Avx512Kernels() { return kKernels; }

}  // namespace pleiad

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
