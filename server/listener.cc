#include "server/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

}  // namespace

bool ListenAddress::is_local() const {
  // A number, and no name that begins like one.
  in_addr number{};
  const bool loopback = absl::StartsWith(host, "127.") && ::inet_pton(AF_INET, host.c_str(), &number) == 1;
  return is_unix() || host == "localhost" || host == "[::1]" || loopback;
}

std::string ListenAddress::ToString() const {
  return is_unix() ? absl::StrCat("unix:", unix_path) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const auto refuse = [text](absl::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat("address '", text, "': ", rule));
  };
  ListenAddress address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (rest.empty() || rest.size() >= sizeof(sockaddr_un::sun_path)) {
      return refuse(absl::StrCat("the path of a unix socket has 1 to ", sizeof(sockaddr_un::sun_path) - 1, " bytes"));
    }
    address.unix_path = std::string(rest);
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return refuse("must be HOST:PORT or unix:PATH");
  address.host = std::string(rest.substr(0, colon));
  if (address.host.find(':') != std::string::npos && (address.host.front() != '[' || address.host.back() != ']')) {
    return refuse("an IPv6 host stands in brackets, as [::1]:50051");
  }
  uint32_t port = 0;
  if (!absl::SimpleAtoi(rest.substr(colon + 1), &port) || port > 65535) return refuse("the port is 0 to 65535");
  address.port = static_cast<uint16_t>(port);
  return address;
}

std::string WhyNotListen(const ListenAddress& address) {
  const auto try_bind = [](int family, const sockaddr* to, socklen_t size) -> std::string {
    const UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (family != AF_UNIX) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const bool good = fd.valid() && ::bind(fd.get(), to, size) == 0 && ::listen(fd.get(), 1) == 0;
    return good ? "" : ::strerror(errno);
  };
  if (address.is_unix()) {
    sockaddr_un to = UnixAddress(address.unix_path);
    std::string why = try_bind(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    if (why.empty()) ::unlink(address.unix_path.c_str());
    return why;
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const std::string host(absl::StripSuffix(absl::StripPrefix(address.host, "["), "]"));
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return ::gai_strerror(error);
  std::string why;
  for (const addrinfo* at = found; at != nullptr && why.empty(); at = at->ai_next) {
    why = try_bind(at->ai_family, at->ai_addr, at->ai_addrlen);
  }
  ::freeaddrinfo(found);
  return why;
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return absl::OkStatus();  // nothing there, or bind says what is wrong
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("unix:", path, ": a file that is no socket lies there"));
  }
  const sockaddr_un address = UnixAddress(path);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool refused =
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno == ECONNREFUSED;
  if (!refused) return absl::FailedPreconditionError(absl::StrCat("unix:", path, ": somebody listens there already"));
  if (::unlink(path.c_str()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("unix:", path, ": cannot remove: ", ::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace pleiad
