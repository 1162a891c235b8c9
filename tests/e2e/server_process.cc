#include "tests/e2e/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace pleiad::testing {
namespace {

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  int output[2], error[2];
  Require(::pipe2(output, O_CLOEXEC) == 0 && ::pipe2(error, O_CLOEXEC) == 0, "pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Require(::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) == 0, command[0].c_str());
  posix_spawn_file_actions_destroy(&actions);
  ::close(output[1]);
  ::close(error[1]);
  output_ = UniqueFd(output[0]);
  error_ = UniqueFd(error[0]);
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

void ChildProcess::Signal(int signal) const { ::kill(pid_, signal); }

std::optional<std::string> ChildProcess::ReadLine(int fd, std::string& rest) {
  while (true) {
    if (const size_t end = rest.find('\n'); end != std::string::npos) {
      std::string line = rest.substr(0, end);
      rest.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) return std::nullopt;
    rest.append(buffer, static_cast<size_t>(n));
  }
}

std::string ChildProcess::DrainError() {
  std::string text;
  while (auto line = ReadErrorLine()) text += *line + "\n";
  return text;
}

int ChildProcess::Wait() {
  int status = 0;
  Require(::waitpid(std::exchange(pid_, -1), &status, 0) > 0, "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

uint64_t ChildProcess::ResidentBytes() const {
  std::ifstream statm("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

ServerProcess::ServerProcess(const std::string& model, const std::string& listen, const std::vector<std::string>& flags)
    : child([&] {
        std::vector<std::string> command{PLEIAD_SERVER_BINARY, "--model",     model,     "--listen", listen,
                                         "--metrics-listen",   "127.0.0.1:0", "--table", "resident"};
        command.insert(command.end(), flags.begin(), flags.end());
        return command;
      }()) {}

bool ServerProcess::WaitUntilReady() {
  const std::optional<std::string> line = child.ReadOutputLine();
  if (!line) return false;
  // "pleiad-server ready ADDRESS metrics HOST:PORT"
  const std::vector<std::string> words = absl::StrSplit(*line, ' ');
  if (words.size() != 5 || words[1] != "ready") return false;
  address = words[2];
  uint32_t port = 0;
  if (!absl::SimpleAtoi(words[4].substr(words[4].rfind(':') + 1), &port)) return false;
  metrics_port = static_cast<uint16_t>(port);
  return true;
}

}  // namespace pleiad::testing
