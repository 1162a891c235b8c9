#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "server/log.h"

namespace pleiad {
namespace {

std::string Find(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

absl::StatusOr<UniqueFd> Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((path.front() != '/' && path.front() != '@') || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("environment: NOTIFY_SOCKET '", path,
                                                   "': must be a path from the root or @NAME, shorter than ",
                                                   sizeof(address.sun_path), " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';  // an abstract socket
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: NOTIFY_SOCKET '", path, "': must be a socket to send to: ", std::strerror(errno)));
  }
  return socket;
}

absl::StatusOr<absl::Duration> ReadWatchdog(const std::map<std::string, std::string>& environment) {
  const std::string text = Find(environment, "WATCHDOG_USEC");
  const std::string pid = Find(environment, "WATCHDOG_PID");
  if (text.empty() || (!pid.empty() && pid != absl::StrCat(::getpid()))) return absl::ZeroDuration();
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(text, &microseconds) || microseconds <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: WATCHDOG_USEC '", text, "': must be microseconds, above 0"));
  }
  return absl::Microseconds(microseconds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceManager>> ServiceManager::Create(
    const std::map<std::string, std::string>& environment, Clock* clock) {
  const std::string path = Find(environment, "NOTIFY_SOCKET");
  if (path.empty()) return nullptr;
  PLEIAD_ASSIGN_OR_RETURN(UniqueFd socket, Connect(path));
  PLEIAD_ASSIGN_OR_RETURN(const absl::Duration watchdog, ReadWatchdog(environment));
  return std::unique_ptr<ServiceManager>(new ServiceManager(std::move(socket), watchdog, clock));
}

void ServiceManager::StopWatching() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ServiceManager::Send(const char* message) {
  if (::send(socket_.get(), message, std::strlen(message), MSG_NOSIGNAL) < 0) {
    spdlog::warn("the service manager was not told {}: {}", message, std::strerror(errno));
  }
}

void ServiceManager::Watch(std::function<absl::Status()> check) {
  if (watchdog_ == absl::ZeroDuration()) return;
  thread_ = std::thread([this, check = std::move(check)] { Run(check); });
}

void ServiceManager::Run(const std::function<absl::Status()>& check) {
  while (true) {
    const absl::Status status = check();
    if (status.ok()) {
      Send("WATCHDOG=1");
    } else {
      spdlog::error("no sign of life to the service manager: {}", status.ToString());
    }
    MutexLock lock(&mutex_);
    const absl::Time next = clock_->Now() + watchdog_ / 4;
    while (!stopping_ && clock_->Now() < next) clock_->WaitUntil(&changed_, &mutex_, next);
    if (stopping_) return;
  }
}

}  // namespace pleiad
