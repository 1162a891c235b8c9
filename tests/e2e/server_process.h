// A program of the product as a child process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace pleiad::testing {

// Its standard output and standard error are pipes. Killed when destroyed, unless it was waited for.
class ChildProcess {
 public:
  // `command`: program and arguments. Aborts when it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Blocks for the next line of its standard output; nothing once it is closed.
  std::optional<std::string> ReadOutputLine() { return ReadLine(output_.get(), output_rest_); }
  std::optional<std::string> ReadErrorLine() { return ReadLine(error_.get(), error_rest_); }
  // What is left of its standard error; blocks until it is closed.
  std::string DrainError();
  // Blocks until it has ended; its exit code, or minus the signal that ended it. Once.
  int Wait();
  // Resident memory now.
  uint64_t ResidentBytes() const;

 private:
  static std::optional<std::string> ReadLine(int fd, std::string& rest);

  pid_t pid_ = -1;
  UniqueFd output_, error_;
  std::string output_rest_, error_rest_;
};

// pleiad-server on `listen` and a metrics port of its own.
struct ServerProcess {
  // `flags` follow --model, --listen and --metrics-listen.
  ServerProcess(const std::string& model, const std::string& listen, const std::vector<std::string>& flags);

  // Reads the ready line; false when the server ended without one.
  bool WaitUntilReady();

  ChildProcess child;
  std::string address;        // set by WaitUntilReady
  uint16_t metrics_port = 0;  // set by WaitUntilReady
};

}  // namespace pleiad::testing
