// Threads that share the work of one caller, range by range.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/base/mutex.h"

namespace pleiad {

class ThreadPool {
 public:
  // worker: 0 for the caller, then 1 .. threads() - 1; two ranges with one worker never run at the same time.
  using RangeFn = absl::FunctionRef<void(size_t worker, size_t begin, size_t end)>;

  // `threads` >= 1 counts the caller, so it starts one less.
  explicit ThreadPool(size_t threads);
  // Not while ParallelFor runs.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return helpers_.size() + 1; }

  // Runs `fn` over [0, n) in ranges of at most `grain` >= 1 and returns when all are done. One caller at a time; what
  // the ranges wrote is visible to it afterwards. Which worker gets which range is left to chance.
  void ParallelFor(size_t n, size_t grain, RangeFn fn) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    Job(size_t n_, size_t grain_, RangeFn fn_) : n(n_), grain(grain_), fn(fn_) {}
    const size_t n;
    const size_t grain;
    const RangeFn fn;
    std::atomic<size_t> cursor{0};
  };

  static void Work(Job& job, size_t worker);
  void HelperLoop(size_t worker) ABSL_LOCKS_EXCLUDED(mutex_);

  // Idle helpers watch this for a short while before they sleep.
  std::atomic<uint64_t> generation_{0};
  // Helpers inside the job; changes under mutex_, read without it by the waiting caller.
  std::atomic<size_t> active_{0};

  Mutex mutex_;
  CondVar work_cv_;
  CondVar done_cv_;
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> helpers_;
};

}  // namespace pleiad
