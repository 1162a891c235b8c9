#include "core/base/thread_pool.h"

#include <algorithm>
#include <chrono>

namespace pleiad {
namespace {

// About what a sleep and a wake-up cost, so that spinning at most doubles them.
constexpr std::chrono::microseconds kSpin{40};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <typename Condition>
bool SpinUntil(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(size_t threads) {
  for (size_t worker = 1; worker < threads; ++worker) {
    helpers_.emplace_back([this, worker] { HelperLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_relaxed);
    work_cv_.NotifyAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Work(Job& job, size_t worker) {
  for (;;) {
    const size_t begin = job.cursor.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.n) return;
    job.fn(worker, begin, std::min(begin + job.grain, job.n));
  }
}

void ThreadPool::ParallelFor(size_t n, size_t grain, RangeFn fn) {
  if (n == 0) return;
  if (helpers_.empty() || n <= grain) {
    for (size_t begin = 0; begin < n; begin += grain) fn(0, begin, std::min(begin + grain, n));
    return;
  }
  Job job(n, grain, fn);
  {
    MutexLock lock(&mutex_);
    job_ = &job;
    generation_.fetch_add(1, std::memory_order_release);
    if (sleeping_ > 0) work_cv_.NotifyAll();
  }
  Work(job, 0);
  {
    // No helper joins from here on; those inside finish.
    MutexLock lock(&mutex_);
    job_ = nullptr;
  }
  SpinUntil([this] { return active_.load(std::memory_order_acquire) == 0; });
  MutexLock lock(&mutex_);
  while (active_.load(std::memory_order_relaxed) != 0) done_cv_.Wait(&mutex_);
}

void ThreadPool::HelperLoop(size_t worker) {
  uint64_t seen = 0;
  for (;;) {
    SpinUntil([&] { return generation_.load(std::memory_order_acquire) != seen; });
    Job* job = nullptr;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && generation_.load(std::memory_order_relaxed) == seen) {
        ++sleeping_;
        work_cv_.Wait(&mutex_);
        --sleeping_;
      }
      if (stop_) return;
      seen = generation_.load(std::memory_order_relaxed);
      job = job_;
      if (job != nullptr) active_.fetch_add(1, std::memory_order_relaxed);
    }
    if (job == nullptr) continue;
    Work(*job, worker);
    MutexLock lock(&mutex_);
    if (active_.fetch_sub(1, std::memory_order_release) == 1) done_cv_.NotifyOne();
  }
}

}  // namespace pleiad
