#include "client/cli/scrape.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/unique_fd.h"

namespace pleiad::cli {
namespace {

constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};  // for a connection, and for the next bytes

UniqueFd Connect(const addrinfo* list) {
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    // A host that is gone, or a process that is stopped, must not hold up what is said of others.
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    if (fd.get() >= 0 && ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return fd;
  }
  return UniqueFd();
}

}  // namespace

absl::StatusOr<std::string> ScrapePage(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address ", address, ": must be HOST:PORT"));
  }
  absl::string_view host(address.data(), colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(std::string(host).c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) return absl::UnavailableError(absl::StrCat("metrics at ", address, ": ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  const UniqueFd fd = Connect(list);
  // Without Accept-Encoding, so that the page comes as text.
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  std::string page;
  if (fd.get() >= 0 &&
      ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    std::vector<char> buffer(1 << 16);
    ssize_t n;
    while ((n = ::recv(fd.get(), buffer.data(), buffer.size(), 0)) > 0) {
      page.append(buffer.data(), static_cast<size_t>(n));
    }
    if (n < 0) page.clear();  // cut short
  }
  if (page.empty()) return absl::UnavailableError(absl::StrCat("metrics at ", address, ": nothing answers"));
  return page;
}

absl::StatusOr<double> ScrapeMetric(const std::string& address, const std::string& name) {
  const absl::StatusOr<std::string> page = ScrapePage(address);
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
