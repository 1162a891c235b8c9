#include "tests/e2e/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "core/base/unique_fd.h"

namespace pleiad::testing {

std::string ScrapeMetrics(uint16_t port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return "";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) return "";
  std::string page;
  std::vector<char> buffer(1 << 16);
  for (ssize_t n; (n = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    page.append(buffer.data(), static_cast<size_t>(n));
  }
  return page;
}

double MetricValue(const std::string& page, const std::string& name) {
  const size_t at = page.find("\n" + name + " ");
  if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return std::strtod(page.c_str() + at + name.size() + 2, nullptr);
}

bool AwaitMetrics(uint16_t port, const std::function<bool(const std::string& page)>& done) {
  while (true) {
    const std::string page = ScrapeMetrics(port);
    if (page.empty()) return false;
    if (done(page)) return true;
  }
}

}  // namespace pleiad::testing
