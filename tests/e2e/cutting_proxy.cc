#include "tests/e2e/cutting_proxy.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace pleiad::testing {
namespace {

constexpr std::chrono::seconds kLimit(60);

UniqueFd UnixSocket(const std::string& path, sockaddr_un* address) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  *address = {};
  address->sun_family = AF_UNIX;
  if (!fd.valid() || path.size() >= sizeof(address->sun_path)) std::abort();
  std::memcpy(address->sun_path, path.data(), path.size());
  return fd;
}

bool SendAll(int fd, const char* data, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace

CuttingProxy::CuttingProxy(const std::string& listen_path, const std::string& target_path) : target_path_(target_path) {
  sockaddr_un address;
  listener_ = UnixSocket(listen_path, &address);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    std::perror(listen_path.c_str());
    std::abort();
  }
  accepting_ = std::thread([this] { AcceptAll(); });
}

CuttingProxy::~CuttingProxy() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  accepting_.join();
  std::vector<std::unique_ptr<Link>> links;
  {
    MutexLock lock(&mutex_);
    links = std::move(links_);
    for (const auto& link : links) {
      link->state = LinkState::kCut;
      ::shutdown(link->client.get(), SHUT_RDWR);
      ::shutdown(link->server.get(), SHUT_RDWR);
    }
  }
  for (const auto& link : links) {
    for (std::thread& thread : link->threads) thread.join();
  }
}

void CuttingProxy::AcceptAll() {
  while (true) {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return;
    sockaddr_un address;
    UniqueFd server = UnixSocket(target_path_, &address);
    if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) continue;
    auto link = std::make_unique<Link>();
    link->client = std::move(client);
    link->server = std::move(server);
    MutexLock lock(&mutex_);
    ++accepted_;
    Link* raw = links_.emplace_back(std::move(link)).get();
    for (const Direction direction : {Direction::kRequests, Direction::kReplies}) {
      raw->threads[static_cast<size_t>(direction)] = std::thread([this, raw, direction] { Pump(raw, direction); });
    }
  }
}

void CuttingProxy::Pump(Link* link, Direction direction) {
  const bool requests = direction == Direction::kRequests;
  const int from = requests ? link->client.get() : link->server.get();
  const int to = requests ? link->server.get() : link->client.get();
  std::string buffer(1 << 20, '\0');
  for (ssize_t n; (n = ::read(from, buffer.data(), buffer.size())) > 0;) {
    const uint64_t pass = Take(link, direction, buffer.data(), static_cast<uint64_t>(n));
    // The end of the other side is seen by the other pump.
    SendAll(to, buffer.data(), pass);
  }
  MutexLock lock(&mutex_);
  if (requests && link->state == LinkState::kOrphaned) return;
  ::shutdown(to, SHUT_RDWR);
}

uint64_t CuttingProxy::Take(Link* link, Direction direction, const char* data, uint64_t bytes) {
  MutexLock lock(&mutex_);
  if (link->state != LinkState::kOpen) return 0;
  Half& half = link->halves[static_cast<size_t>(direction)];
  const uint64_t pass = std::min(bytes, half.pass);
  if (half.pass != UINT64_MAX) half.pass -= pass;
  half.held.append(data + pass, bytes - pass);
  forwarded_[static_cast<size_t>(direction)] += pass;
  changed_.NotifyAll();
  return pass;
}

void CuttingProxy::Hold(Direction direction, uint64_t pass) {
  MutexLock lock(&mutex_);
  for (const auto& link : links_) {
    if (link->state == LinkState::kOpen) link->halves[static_cast<size_t>(direction)].pass = pass;
  }
}

uint64_t CuttingProxy::forwarded(Direction direction) {
  MutexLock lock(&mutex_);
  return forwarded_[static_cast<size_t>(direction)];
}

uint64_t CuttingProxy::accepted() {
  MutexLock lock(&mutex_);
  return accepted_;
}

uint64_t CuttingProxy::Held(Direction direction) {
  uint64_t held = 0;
  for (const auto& link : links_) {
    if (link->state == LinkState::kOpen) held += link->halves[static_cast<size_t>(direction)].held.size();
  }
  return held;
}

bool CuttingProxy::AwaitForwarded(Direction direction, uint64_t total) {
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  MutexLock lock(&mutex_);
  while (forwarded_[static_cast<size_t>(direction)] < total) {
    if (std::chrono::steady_clock::now() >= limit) return false;
    changed_.WaitUntil(&mutex_, limit);
  }
  return true;
}

bool CuttingProxy::AwaitHeld(Direction direction, uint64_t bytes) {
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  MutexLock lock(&mutex_);
  while (Held(direction) < bytes) {
    if (std::chrono::steady_clock::now() >= limit) return false;
    changed_.WaitUntil(&mutex_, limit);
  }
  return true;
}

void CuttingProxy::Cut(CutSides sides) {
  MutexLock lock(&mutex_);
  for (const auto& link : links_) {
    if (link->state != LinkState::kOpen) continue;
    link->state = sides == CutSides::kBoth ? LinkState::kCut : LinkState::kOrphaned;
    ::shutdown(link->client.get(), SHUT_RDWR);
    if (sides == CutSides::kBoth) ::shutdown(link->server.get(), SHUT_RDWR);
  }
}

void CuttingProxy::DeliverLate() {
  MutexLock lock(&mutex_);
  for (const auto& link : links_) {
    if (link->state != LinkState::kOrphaned) continue;
    const std::string late = std::exchange(link->halves[static_cast<size_t>(Direction::kRequests)].held, "");
    SendAll(link->server.get(), late.data(), late.size());
  }
}

}  // namespace pleiad::testing
