// Kernels for AVX2 with FMA: vectors of eight floats.
#if defined(__x86_64__)

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/device/cpu/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace pleiad {
namespace {

constexpr size_t kLanes = 8;

#include "core/device/cpu/kernels.inc"

}  // namespace

const CpuKernels& Avx2Kernels() { return kKernels; }

}  // namespace pleiad

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
