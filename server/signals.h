// SIGTERM and SIGINT as calls on an ordinary thread.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace pleiad {

// Blocks both signals in the calling thread and all it starts later, and ignores SIGPIPE. First thing in main.
void BlockSignals();

class SignalThread {
 public:
  // `on_signal` is called once per signal, on the thread of the result.
  static absl::StatusOr<std::unique_ptr<SignalThread>> Start(std::function<void()> on_signal);
  ~SignalThread();

 private:
  SignalThread() = default;
  void Run(const std::function<void()>& on_signal);

  UniqueFd signals_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace pleiad
