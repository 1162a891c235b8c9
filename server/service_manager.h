// Tells the service manager that started the process how it is: the datagrams of sd_notify(3), without its library.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace pleiad {

// Thread-safe.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Null where nobody wants to be told. InvalidArgument naming
  // the variable, its value and the rule. `clock` outlives the result.
  static absl::StatusOr<std::unique_ptr<ServiceManager>> Create(const std::map<std::string, std::string>& environment,
                                                                Clock* clock);
  ~ServiceManager() { StopWatching(); }

  // None of these blocks; what cannot be sent is lost.
  void Ready() { Send("READY=1"); }
  void Stopping() { Send("STOPPING=1"); }

  // Zero: the manager asked for no signs of life.
  absl::Duration watchdog() const { return watchdog_; }

  // Starts a thread that asks `check` four times in each watchdog(), and gives a sign of life when it says OK; once,
  // and only with a watchdog(). A check that fails or never returns makes the manager act.
  void Watch(std::function<absl::Status()> check);
  // Waits for a check under way; none comes later.
  void StopWatching();

 private:
  ServiceManager(UniqueFd socket, absl::Duration watchdog, Clock* clock)
      : socket_(std::move(socket)), watchdog_(watchdog), clock_(clock) {}

  void Send(const char* message);
  void Run(const std::function<absl::Status()>& check);

  const UniqueFd socket_;  // connected
  const absl::Duration watchdog_;
  Clock* const clock_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pleiad
