// A program beside the test, its output read line by line.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace pleiad::testing {

// Killed when destroyed. Used by one thread.
class ChildProcess {
 public:
  // Standard output and error both end up in ReadLine. Aborts when it cannot start.
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Blocks for the next line; empty at the end.
  std::string ReadLine();
  // Reads until a line holds `text`; that line, or empty at the end.
  std::string ReadUntil(const std::string& text);
  // All there is until the end.
  std::string ReadAll();
  void Signal(int signal);
  // Blocks until it has ended: its exit code, or minus the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = 0;
  UniqueFd output_;
  std::string buffer_;
};

// The output and the exit code of a command.
struct Finished {
  std::string output;
  int code = 0;
};
Finished RunToEnd(const std::vector<std::string>& command);

}  // namespace pleiad::testing
