// A program beside the test, its output read line by line.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace pleiad::testing {

// Where its standard error goes: to a pipe of its own, or into the one of its standard output.
enum class StandardError { kApart, kWithOutput };

// Killed when destroyed, unless it was waited for, and by the kernel when the thread that made it ends, however that
// ends: an aborted test leaves no process. Used by one thread.
class ChildProcess {
 public:
  // `command`: path of a program, and its arguments; its environment is the test's without PLEIAD_TEST_*. One that
  // cannot be run says so on its standard error and exits with 127.
  explicit ChildProcess(const std::vector<std::string>& command, StandardError error = StandardError::kApart);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Block for the next line; nothing once the pipe is closed.
  std::optional<std::string> ReadOutputLine() { return ReadLine(output_); }
  std::optional<std::string> ReadErrorLine() { return ReadLine(error_); }
  // Reads lines of its standard error until one holds `text`; that line, or nothing when none came.
  std::optional<std::string> ReadErrorUntil(const std::string& text);
  // What is left; block until the pipe is closed.
  std::string DrainOutput() { return Drain(output_); }
  std::string DrainError() { return Drain(error_); }
  // Blocks until it has ended; its exit code, or minus the signal that ended it. Once.
  int Wait();

 private:
  struct Pipe {
    UniqueFd fd;
    std::string rest;
  };
  static std::optional<std::string> ReadLine(Pipe& pipe);
  static std::string Drain(Pipe& pipe);

  pid_t pid_ = -1;
  Pipe output_, error_;
};

// What a command wrote to either stream, and its exit code.
struct Finished {
  std::string output;
  int code = 0;
};
Finished RunToEnd(const std::vector<std::string>& command);

}  // namespace pleiad::testing
