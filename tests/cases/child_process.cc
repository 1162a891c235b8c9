#include "tests/cases/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace pleiad::testing {

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  output_ = UniqueFd(ends[0]);
  const UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  if (::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) {
    std::perror(arguments[0]);
    std::abort();
  }
  ::posix_spawn_file_actions_destroy(&actions);
}

ChildProcess::~ChildProcess() {
  if (pid_ == 0) return;
  Signal(SIGKILL);
  Wait();
}

std::string ChildProcess::ReadLine() {
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t n = ::read(output_.get(), bytes, sizeof(bytes));
    if (n <= 0) return "";
    buffer_.append(bytes, static_cast<size_t>(n));
  }
}

std::string ChildProcess::ReadUntil(const std::string& text) {
  for (;;) {
    std::string line = ReadLine();
    if (line.empty() || line.find(text) != std::string::npos) return line;
  }
}

std::string ChildProcess::ReadAll() {
  std::string all = std::move(buffer_);
  buffer_.clear();
  char bytes[4096];
  for (ssize_t n; (n = ::read(output_.get(), bytes, sizeof(bytes))) > 0;) all.append(bytes, static_cast<size_t>(n));
  return all;
}

void ChildProcess::Signal(int signal) { ::kill(pid_, signal); }

int ChildProcess::Wait() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) std::abort();
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Finished RunToEnd(const std::vector<std::string>& command) {
  ChildProcess process(command);
  Finished finished;
  finished.output = process.ReadAll();
  finished.code = process.Wait();
  return finished;
}

}  // namespace pleiad::testing
