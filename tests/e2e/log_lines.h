// What the servers of this process log.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string>

#include "core/base/mutex.h"

namespace pleiad::testing {

// Lines of the log while it lives. Made and destroyed while nothing logs.
class LogLines {
 public:
  LogLines() { spdlog::default_logger()->sinks().push_back(sink_); }
  ~LogLines() { spdlog::default_logger()->sinks().pop_back(); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  std::string text() const {
    MutexLock lock(&sink_->mutex);
    return sink_->lines;
  }
  // Blocks until they have `text`.
  void Await(const std::string& text) {
    MutexLock lock(&sink_->mutex);
    while (sink_->lines.find(text) == std::string::npos) sink_->changed.Wait(&sink_->mutex);
  }

 private:
  struct Sink : spdlog::sinks::base_sink<std::mutex> {
    void sink_it_(const spdlog::details::log_msg& message) override {
      MutexLock lock(&mutex);
      lines.append(message.payload.data(), message.payload.size());
      lines += "\n";
      changed.NotifyAll();
    }
    void flush_() override {}

    Mutex mutex;
    CondVar changed;
    std::string lines ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
};

}  // namespace pleiad::testing
