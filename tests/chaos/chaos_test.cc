// Servers that die, hang, lose connections and are replaced, under 64 decoding sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/chaos/cluster.h"
#include "tests/e2e/cutting_proxy.h"

namespace pleiad::testing {
namespace {

using SteadyClock = std::chrono::steady_clock;

TEST(ChaosTest, KilledServers) {
  const int kills = LongForm() ? 20 : 4;
  Cluster cluster;
  std::mt19937 random(1);
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(client::ReplicatedOptions()));
  for (int i = 0; i < kills; ++i) {
    cluster.load().AwaitSteps(64 + random() % 2000);
    const size_t victim = cluster.client(random() % kClients).replica();
    const client::ReplicatedCounters before = cluster.Counters();
    const SteadyClock::time_point now = SteadyClock::now();
    cluster.server(victim).child.Signal(SIGKILL);
    cluster.server(victim).child.Wait();
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    const client::ReplicatedCounters after = cluster.Counters();
    EXPECT_GT(after.moves, before.moves) << "kill " << i;
    EXPECT_GT(after.replayed_tokens + after.resent_steps, before.replayed_tokens + before.resent_steps) << "kill " << i;
    EXPECT_GT(after.replayed_tokens, before.replayed_tokens) << "kill " << i;
    ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
  }
  cluster.Report("kill -9", kills);
  cluster.ExpectUndisturbed();
}

TEST(ChaosTest, StoppedAndContinuedServers) {
  const int stops = LongForm() ? 10 : 2;
  Cluster cluster;
  std::mt19937 random(2);
  client::ReplicatedOptions options = Cluster::Options();
  options.stall_timeout = options.rpc_timeout = options.connect_timeout = absl::Milliseconds(1500);
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < stops; ++i) {
    cluster.load().AwaitSteps(64 + random() % 2000);
    const size_t victim = cluster.client(random() % kClients).replica();
    const uint64_t moves = cluster.Counters().moves;
    const SteadyClock::time_point now = SteadyClock::now();
    cluster.server(victim).child.Signal(SIGSTOP);
    // Its threads may go on for a moment: until it has stopped, its answers say nothing.
    ASSERT_EQ(::waitpid(cluster.server(victim).child.pid(), nullptr, WUNTRACED), cluster.server(victim).child.pid());
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    EXPECT_GT(cluster.Counters().moves, moves) << "stop " << i;
    cluster.server(victim).child.Signal(SIGCONT);
  }
  cluster.Report("SIGSTOP", stops);
  cluster.ExpectUndisturbed();
}

uint64_t Accepted(const std::vector<std::unique_ptr<CuttingProxy>>& proxies) {
  uint64_t accepted = 0;
  for (const auto& proxy : proxies) accepted += proxy->accepted();
  return accepted;
}

TEST(ChaosTest, DroppedConnections) {
  const int cuts = LongForm() ? 200 : 20;
  Cluster cluster;
  std::mt19937 random(3);
  std::vector<std::unique_ptr<CuttingProxy>> proxies;
  client::ReplicatedOptions options = Cluster::Options();
  for (size_t i = 0; i < kServers; ++i) {
    proxies.push_back(std::make_unique<CuttingProxy>(cluster.socket(i) + ".cut", cluster.socket(i)));
    options.addresses.push_back("unix:" + cluster.socket(i) + ".cut");
  }
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < cuts; ++i) {
    cluster.load().AwaitSteps(random() % 500);
    const size_t victim = cluster.client(random() % kClients).replica();
    const uint64_t accepted = Accepted(proxies);
    const SteadyClock::time_point now = SteadyClock::now();
    proxies[victim]->Cut(CutSides::kBoth);
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    EXPECT_GT(Accepted(proxies), accepted) << "cut " << i << ": nobody has connected again";
  }
  cluster.Report("dropped connections", cuts);
  cluster.ExpectUndisturbed();
}

TEST(ChaosTest, RollingRestart) {
  const int rounds = LongForm() ? 10 : 1;
  Cluster cluster;
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(client::ReplicatedOptions()));
  for (int i = 0; i < rounds; ++i) {
    for (size_t victim = 0; victim < kServers; ++victim) {
      cluster.load().AwaitSteps(500);
      const SteadyClock::time_point now = SteadyClock::now();
      cluster.server(victim).child.Signal(SIGTERM);
      EXPECT_EQ(cluster.server(victim).child.Wait(), 0) << "round " << i << ", server " << victim << ": not drained";
      cluster.Record(cluster.load().AwaitEverySequence(now));
      ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
      ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
    }
  }
  EXPECT_GE(cluster.Counters().drain_moves, static_cast<uint64_t>(rounds) * 2);
  cluster.Report("rolling restart", rounds);
  cluster.ExpectUndisturbed();
}

}  // namespace
}  // namespace pleiad::testing
