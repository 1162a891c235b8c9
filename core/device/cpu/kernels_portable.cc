// Kernels of any processor: vectors of four floats.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/device/cpu/kernels.h"

namespace pleiad {
namespace {

constexpr size_t kLanes = 4;

#include "core/device/cpu/kernels.inc"

}  // namespace

const CpuKernels& PortableKernels() { return kKernels; }

}  // namespace pleiad
