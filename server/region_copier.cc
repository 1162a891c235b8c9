#include "server/region_copier.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/mutex.h"

namespace pleiad {
namespace {

// Takes some 25 us to copy; to wake a thread takes as long.
constexpr uint64_t kPart = 256 << 10;
constexpr size_t kMostThreads = 4;

}  // namespace

size_t RegionCopier::ThreadsOf(size_t cores) { return std::clamp<size_t>(cores, 1, kMostThreads); }

absl::Status RegionCopier::Copy(uint64_t bytes, absl::FunctionRef<absl::Status(uint64_t begin, uint64_t end)> copy) {
  if (bytes <= kPart || taken_.test_and_set(std::memory_order_acquire)) return copy(0, bytes);
  Mutex mutex;
  uint64_t failed_at = std::numeric_limits<uint64_t>::max();
  absl::Status failed;
  pool_.ParallelFor(bytes, kPart, [&](size_t, uint64_t begin, uint64_t end) {
    absl::Status status = copy(begin, end);
    if (status.ok()) return;
    MutexLock lock(&mutex);
    if (begin > failed_at) return;
    failed_at = begin;
    failed = std::move(status);
  });
  taken_.clear(std::memory_order_release);
  return failed;
}

}  // namespace pleiad
