// HAProxy with deploy/haproxy/haproxy.cfg in front of a cluster, on a socket of its own, with quick checks.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/chaos/cluster.h"
#include "tests/support/process/child_process.h"

namespace pleiad::testing {

// Used by one thread. The cluster outlives it.
class Balancer {
 public:
  static bool Installed() { return ::access("/usr/sbin/haproxy", X_OK) == 0; }

  explicit Balancer(const Cluster& cluster) : socket_(cluster.socket(0) + ".lb") {
    const std::string config = cluster.socket(0) + ".cfg";
    std::ofstream(config) << Config(cluster);
    process_ = std::make_unique<ChildProcess>(std::vector<std::string>{"/usr/sbin/haproxy", "-db", "-f", config});
  }

  const std::string& socket() const { return socket_; }
  std::string address() const { return "unix:" + socket_; }
  // Block until it has said so since the last line that was waited for. A server that is back before a check has missed
  // it is never said to be up.
  [[nodiscard]] bool AwaitDown(size_t server) { return AwaitLine(absl::StrCat("pleiad-", server, " is DOWN")); }
  [[nodiscard]] bool AwaitUp(size_t server) { return AwaitLine(absl::StrCat("pleiad-", server, " is UP")); }

 private:
  bool AwaitLine(const std::string& text) { return process_->ReadErrorUntil(text).has_value(); }

  std::string Config(const Cluster& cluster) const {
    std::ifstream file(std::string(PLEIAD_SOURCE_DIR) + "/deploy/haproxy/haproxy.cfg");
    std::string text(std::istreambuf_iterator<char>(file), {});
    const auto replace = [&text](const std::string& from, const std::string& to) {
      ASSERT_NE(text.find(from), std::string::npos) << from;
      text.replace(text.find(from), from.size(), to);
    };
    replace("log stdout format raw local0", "");
    replace("bind :50051", "bind unix@" + socket_);
    replace("inter 2s", "inter 50ms");
    replace("timeout check 2s", "timeout check 500ms");
    for (size_t i = 0; i < kServers; ++i) {
      replace(absl::StrCat(" pleiad-", i, ":50051"), absl::StrCat(" unix@", cluster.socket(i)));
    }
    return text;
  }

  const std::string socket_;
  std::unique_ptr<ChildProcess> process_;
};

// What stands before the servers.
enum class Front { kNothing, kBalancer };

// With kBalancer a balancer, which `options` then names alone; else null.
inline std::unique_ptr<Balancer> PutInFront(Front front, const Cluster& cluster, client::ReplicatedOptions* options) {
  if (front == Front::kNothing) return nullptr;
  auto balancer = std::make_unique<Balancer>(cluster);
  options->addresses = {balancer->address()};
  return balancer;
}

}  // namespace pleiad::testing
