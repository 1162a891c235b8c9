// Copies of large tensors between memory and the files of clients, by several threads at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/base/thread_pool.h"

namespace pleiad {

// Thread-safe.
class RegionCopier {
 public:
  // More copy no faster than memory does.
  static size_t ThreadsOf(size_t cores);

  // `threads` >= 1 counts the caller.
  explicit RegionCopier(size_t threads) : pool_(threads) {}

  // Runs `copy` over [0, bytes) in parts, on this thread and, unless another caller has them, on those of the copier.
  // Blocks until all parts have ended. The status of the first part that failed, of which later ones may have run.
  absl::Status Copy(uint64_t bytes, absl::FunctionRef<absl::Status(uint64_t begin, uint64_t end)> copy);

 private:
  ThreadPool pool_;
  std::atomic_flag taken_;
};

}  // namespace pleiad
