#include "server/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"

namespace pleiad {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

absl::StatusOr<std::unique_ptr<SignalThread>> SignalThread::Start(Handlers handlers) {
  std::unique_ptr<SignalThread> result(new SignalThread);
  const sigset_t set = Signals();
  result->signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC));
  result->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!result->signals_.valid() || !result->stop_.valid()) return absl::ErrnoToStatus(errno, "signalfd or eventfd");
  result->handlers_ = std::move(handlers);
  result->thread_ = std::thread([raw = result.get()] { raw->Run(); });
  return result;
}

void SignalThread::Run() {
  while (true) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (fds[0].revents == 0 || ::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    (info.ssi_signo == SIGHUP ? handlers_.reload : handlers_.stop)();
  }
}

SignalThread::~SignalThread() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

}  // namespace pleiad
