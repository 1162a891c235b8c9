#include "client/cli/scrape.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace pleiad::cli {
namespace {

struct Address {
  std::string host, port;  // both empty where it is none
};

Address Parse(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return {};
  absl::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool host_is_one = !host.empty() && host.find_first_of(bracketed ? "[]/ " : "[]:/ ") == absl::string_view::npos;
  const bool digits = std::all_of(port.begin(), port.end(), [](char c) { return absl::ascii_isdigit(c); });
  uint32_t number = 0;
  if (!host_is_one || !digits || !absl::SimpleAtoi(port, &number) || number == 0 || number > 65535) return {};
  return {std::string(host), std::string(port)};
}

// Until `events` are there; false when `deadline` is.
bool Await(int fd, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd at{.fd = fd, .events = events, .revents = 0};
    // Rounded up, so that the last wait does not spin.
    const int ready = ::poll(&at, 1, static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left), 60'000)) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says why
  }
}

// Not valid where nothing listens, or `deadline` was before it.
UniqueFd Connect(const addrinfo* list, absl::Time deadline) {
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    if (!fd.valid()) continue;
    if (::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return fd;
    if (errno != EINPROGRESS || !Await(fd.get(), POLLOUT, deadline)) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return fd;
  }
  return UniqueFd();
}

// All that comes; empty when it was cut short, or `deadline` was before its end.
std::string ReadAll(int fd, absl::Time deadline) {
  std::string page;
  std::vector<char> buffer(1 << 16);
  while (Await(fd, POLLIN, deadline)) {
    const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (n == 0) return page;
    if (n > 0) page.append(buffer.data(), static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) break;
  }
  return "";
}

}  // namespace

bool IsMetricsAddress(absl::string_view address) { return !Parse(address).host.empty(); }

absl::StatusOr<std::string> ScrapePage(const std::string& address, absl::Duration patience) {
  const Address parsed = Parse(address);
  if (parsed.host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address ", address, ": must be HOST:PORT"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(parsed.host.c_str(), parsed.port.c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(absl::StrCat("metrics at ", address, ": ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  // A host that is gone, or a process that is stopped, must not hold up what is said of others.
  const absl::Time deadline = Clock::Real()->Now() + patience;
  const UniqueFd fd = Connect(list, deadline);
  // Without Accept-Encoding, so that the page comes as text.
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  std::string page;
  if (fd.valid() &&
      ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    page = ReadAll(fd.get(), deadline);
  }
  if (!page.empty()) return page;
  if (Clock::Real()->Now() < deadline) {
    return absl::UnavailableError(absl::StrCat("metrics at ", address, ": nothing answers"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("metrics at ", address, ": no answer within ", absl::FormatDuration(patience)));
}

absl::StatusOr<double> ScrapeMetric(const std::string& address, const std::string& name) {
  const absl::StatusOr<std::string> page = ScrapePage(address, kScrapePatience);
  if (!page.ok()) return page.status();
  for (absl::string_view line : absl::StrSplit(*page, '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") && absl::SimpleAtod(line, &value)) {
      return value;
    }
  }
  return absl::NotFoundError(absl::StrCat("metrics at ", address, ": there is no ", name));
}

}  // namespace pleiad::cli
