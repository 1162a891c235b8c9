// Copies to shared memory that go on beside the work, and mbarriers by which warps hand it over.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pleiad::cuda {

__device__ inline uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes.
__device__ inline void CopyAsync(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from) : "memory");
}

// The first `bytes` of 16; the others become zeros.
__device__ inline void CopyAsync(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copies since the last one are a group.
__device__ inline void Commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// This warp's copies but the last kPending groups have come, for all its lanes.
template <int kPending>
__device__ void AwaitAllBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

__device__ inline void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}

// What this thread wrote is seen by whoever has waited.
__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives when all copies that this thread has begun are done.
__device__ inline void ArriveAfterCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// For the end of a phase: `parity` 0 is the first, 1 the second, and so on in turn.
__device__ inline void AwaitPhase(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace pleiad::cuda
