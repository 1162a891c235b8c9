// Whether a process keeps growing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PLEIAD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PLEIAD_SANITIZED 1
#endif
#endif

namespace pleiad::testing {

// Sanitizers keep freed memory and take many times the time.
#ifdef PLEIAD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// What a process may grow by from cycle 50,000 to 200,000.
inline constexpr uint64_t kMaxGrowthBytes = 4 << 20;

// Resident memory of a process now; 0 when there is none.
uint64_t ResidentBytes(pid_t process);

struct MemoryGrowth {
  uint32_t warm_cycles = 0, cycles = 0;
  uint64_t warm_bytes = 0, end_bytes = 0;  // resident after them
  std::vector<uint64_t> samples;           // resident, ten over the cycles, for whoever reads a failure

  uint64_t bytes() const { return end_bytes > warm_bytes ? end_bytes - warm_bytes : 0; }
};
std::ostream& operator<<(std::ostream& out, const MemoryGrowth& growth);

// Calls `run` with 0, `stride`, 2 `stride` ... below `cycles`; each call is `stride` cycles. `warm_cycles` is a
// multiple of `stride`.
MemoryGrowth MeasureGrowth(pid_t process, uint32_t warm_cycles, uint32_t cycles, uint32_t stride,
                           const std::function<void(uint32_t done)>& run);

}  // namespace pleiad::testing
