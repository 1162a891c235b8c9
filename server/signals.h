// SIGTERM, SIGINT and SIGHUP as calls on an ordinary thread.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace pleiad {

// Blocks the three signals in the calling thread and all it starts later, and ignores SIGPIPE. First thing in main.
void BlockSignals();

class SignalThread {
 public:
  struct Handlers {
    std::function<void()> stop;    // SIGTERM, SIGINT
    std::function<void()> reload;  // SIGHUP
  };
  // Each is called once per signal, on the thread of the result.
  static absl::StatusOr<std::unique_ptr<SignalThread>> Start(Handlers handlers);
  ~SignalThread();

 private:
  SignalThread() = default;
  void Run();

  Handlers handlers_;
  UniqueFd signals_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace pleiad
