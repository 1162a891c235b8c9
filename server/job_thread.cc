#include "server/job_thread.h"

#include <utility>

namespace pleiad {

JobThread::~JobThread() {
  {
    MutexLock lock(&mutex_);
    exit_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void JobThread::Run(std::function<void()> job) {
  MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
  changed_.NotifyAll();
}

void JobThread::Loop() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(&mutex_);
      while (!exit_ && jobs_.empty()) changed_.Wait(&mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace pleiad
