// A byte proxy between two unix sockets that cuts connections where a test says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace pleiad::testing {

enum class Direction : uint8_t { kRequests = 0, kReplies = 1 };
enum class CutSides : uint8_t {
  kBoth,        // both peers see the end
  kClientOnly,  // the server's side stays, as when a dead peer has not been noticed
};

// Thread-safe. Connections made after a cut pass freely.
class CuttingProxy {
 public:
  CuttingProxy(const std::string& listen_path, const std::string& target_path);
  ~CuttingProxy();

  // Of the connections there are: lets `pass` more bytes through, then keeps what comes.
  void Hold(Direction direction, uint64_t pass);
  // Bytes let through so far, over all connections.
  uint64_t forwarded(Direction direction);
  // Connections so far.
  uint64_t accepted();
  // Blocks until so many bytes were let through or are kept; false when that takes too long.
  bool AwaitForwarded(Direction direction, uint64_t total);
  bool AwaitHeld(Direction direction, uint64_t bytes);

  // Ends all connections. What is kept is dropped, of requests with kClientOnly by the destructor only.
  void Cut(CutSides sides);
  // Sends the kept requests of connections cut with kClientOnly on to the server; the replies are dropped.
  void DeliverLate();

 private:
  enum class LinkState : uint8_t { kOpen, kOrphaned, kCut };
  struct Half {
    uint64_t pass = UINT64_MAX;
    std::string held;
  };
  struct Link {
    UniqueFd client, server;
    LinkState state = LinkState::kOpen;  // guarded by the proxy's mutex, as the halves
    Half halves[2];
    std::thread threads[2];
  };

  void AcceptAll();
  void Pump(Link* link, Direction direction);
  // How much of `bytes` may go on; the rest is kept.
  uint64_t Take(Link* link, Direction direction, const char* data, uint64_t bytes);
  uint64_t Held(Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string target_path_;
  UniqueFd listener_;
  std::thread accepting_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  uint64_t accepted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t forwarded_[2] ABSL_GUARDED_BY(mutex_) = {0, 0};
};

}  // namespace pleiad::testing
