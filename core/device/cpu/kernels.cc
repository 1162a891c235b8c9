#include "core/device/cpu/kernels.h"

namespace pleiad {

const CpuKernels& KernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return Avx512Kernels();
  if (isa >= Isa::kAvx2) return Avx2Kernels();
#endif
  (void)isa;
  return PortableKernels();
}

}  // namespace pleiad
