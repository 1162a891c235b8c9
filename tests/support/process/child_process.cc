#include "tests/support/process/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"

namespace pleiad::testing {
namespace {

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

// The child between fork and exec: async-signal-safe calls alone.
[[noreturn]] void Exec(pid_t parent, char* const* argv, char* const* environment, int output, int error) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A parent that ended before the line above sends no signal.
  if (::getppid() == parent && ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(error, STDERR_FILENO) >= 0) {
    ::execve(argv[0], argv, environment);
    ::perror(argv[0]);
  }
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, StandardError error) {
  int output_ends[2], error_ends[2];
  Require(::pipe2(output_ends, O_CLOEXEC) == 0 && ::pipe2(error_ends, O_CLOEXEC) == 0, "pipe2");
  output_.fd = UniqueFd(output_ends[0]);
  error_.fd = UniqueFd(error_ends[0]);
  const UniqueFd output_end(output_ends[1]), error_end(error_ends[1]);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // What chooses the device of the tests is no flag of the server.
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, "PLEIAD_TEST_")) environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  const int error_fd = error == StandardError::kApart ? error_end.get() : output_end.get();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) Exec(parent, argv.data(), environment.data(), output_end.get(), error_fd);
  Require(pid_ > 0, "fork");
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

void ChildProcess::Signal(int signal) const { ::kill(pid_, signal); }

std::optional<std::string> ChildProcess::ReadLine(Pipe& pipe) {
  while (true) {
    if (const size_t end = pipe.rest.find('\n'); end != std::string::npos) {
      std::string line = pipe.rest.substr(0, end);
      pipe.rest.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t n = ::read(pipe.fd.get(), buffer, sizeof(buffer));
    if (n <= 0) return std::nullopt;
    pipe.rest.append(buffer, static_cast<size_t>(n));
  }
}

std::string ChildProcess::Drain(Pipe& pipe) {
  std::string text;
  while (const std::optional<std::string> line = ReadLine(pipe)) text += *line + "\n";
  return text + std::exchange(pipe.rest, "");
}

std::optional<std::string> ChildProcess::ReadErrorUntil(const std::string& text) {
  while (std::optional<std::string> line = ReadErrorLine()) {
    if (line->find(text) != std::string::npos) return line;
  }
  return std::nullopt;
}

int ChildProcess::Wait() {
  int status = 0;
  Require(::waitpid(std::exchange(pid_, -1), &status, 0) > 0, "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Finished RunToEnd(const std::vector<std::string>& command) {
  ChildProcess process(command, StandardError::kWithOutput);
  Finished finished;
  finished.output = process.DrainOutput();
  finished.code = process.Wait();
  return finished;
}

}  // namespace pleiad::testing
