// A thread for work that blocks longer than a thread of gRPC's may.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "core/base/mutex.h"

namespace pleiad {

// Thread-safe.
class JobThread {
 public:
  JobThread() : thread_([this] { Loop(); }) {}
  // Runs what is left.
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // Jobs run one after the other, in the order of the calls, and are destroyed on the thread.
  void Run(std::function<void()> job) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool exit_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace pleiad
