// Servers behind HAProxy that die, hang, are damaged and replaced, under 64 decoding sequences.
#include "tests/chaos/balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "client/error_info.h"
#include "tests/chaos/cluster.h"
#include "tests/chaos/own_tables.h"
#include "tests/e2e/cutting_proxy.h"
#include "tests/e2e/metrics_page.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using SteadyClock = std::chrono::steady_clock;

class BalancerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Balancer::Installed()) GTEST_SKIP() << "no /usr/sbin/haproxy";
  }
};

TEST_F(BalancerTest, KilledServers) {
  const int kills = LongForm() ? 20 : 3;
  Cluster cluster;
  Balancer balancer(cluster);
  client::ReplicatedOptions options;
  options.addresses = {balancer.address()};
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < kills; ++i) {
    cluster.load().AwaitSteps(500);
    const size_t victim = static_cast<size_t>(i) % kServers;
    const SteadyClock::time_point now = SteadyClock::now();
    cluster.server(victim).child.Signal(SIGKILL);
    cluster.server(victim).child.Wait();
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    ASSERT_TRUE(balancer.AwaitDown(victim));
    ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
    // Calls go to it again then, and streams stay where they are.
    ASSERT_TRUE(balancer.AwaitUp(victim));
    for (size_t c = 0; c < kClients; ++c) {
      absl::StatusOr<client::ReplicatedSequence> sequence = cluster.client(c).OpenSequence();
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      client::Step step;
      step.segments.push_back({nullptr, 1, false, std::nullopt});
      step.token_ids = {11};
      step.highway.zeros = true;
      const absl::StatusOr<client::StepResult> result = cluster.client(c).Run(std::move(step), {&*sequence});
      EXPECT_TRUE(result.ok()) << "kill " << i << ", client " << c << ": " << result.status();
    }
  }
  EXPECT_GT(cluster.Counters().moves, 0u);
  cluster.Report("kill -9 behind HAProxy", kills);
  cluster.ExpectUndisturbed();
}

TEST_F(BalancerTest, StoppedAndContinuedServers) {
  const int stops = LongForm() ? 10 : 2;
  // Room for what a server that hung keeps until it expires.
  Cluster cluster([](size_t, ClusterServer* own) {
    std::replace(own->flags.begin(), own->flags.end(), std::string("--max-sequences=256"),
                 std::string("--max-sequences=1024"));
  });
  Balancer balancer(cluster);
  client::ReplicatedOptions options = Cluster::Options();
  options.addresses = {balancer.address()};
  options.stall_timeout = options.rpc_timeout = options.connect_timeout = absl::Milliseconds(1500);
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < stops; ++i) {
    const size_t victim = cluster.AwaitBusy(static_cast<size_t>(i));
    const uint64_t moves = cluster.Counters().moves;
    const SteadyClock::time_point now = SteadyClock::now();
    cluster.server(victim).child.Signal(SIGSTOP);
    ASSERT_EQ(::waitpid(cluster.server(victim).child.pid(), nullptr, WUNTRACED), cluster.server(victim).child.pid());
    // From here on another server answers what is not on an old stream.
    ASSERT_TRUE(balancer.AwaitDown(victim));
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    EXPECT_GT(cluster.Counters().moves, moves) << "stop " << i;
    cluster.server(victim).child.Signal(SIGCONT);
    ASSERT_TRUE(balancer.AwaitUp(victim));
  }
  cluster.Report("SIGSTOP behind HAProxy", stops);
  cluster.ExpectUndisturbed();
}

TEST_F(BalancerTest, DroppedConnections) {
  const int cuts = LongForm() ? 200 : 20;
  Cluster cluster;
  std::mt19937 random(3);
  Balancer balancer(cluster);
  CuttingProxy proxy(balancer.socket() + ".cut", balancer.socket());
  client::ReplicatedOptions options = Cluster::Options();
  options.addresses = {balancer.address() + ".cut"};
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < cuts; ++i) {
    cluster.load().AwaitSteps(random() % 500);
    const uint64_t accepted = proxy.accepted();
    const SteadyClock::time_point now = SteadyClock::now();
    proxy.Cut(CutSides::kBoth);
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    EXPECT_GE(proxy.accepted(), accepted + kClients) << "cut " << i << ": each client has connected again";
  }
  cluster.Report("dropped connections to HAProxy", cuts);
  cluster.ExpectUndisturbed();
}

TEST_F(BalancerTest, RollingRestart) {
  const int rounds = LongForm() ? 10 : 1;
  Cluster cluster([](size_t, ClusterServer* own) { own->log_level = "warning"; });
  Balancer balancer(cluster);
  client::ReplicatedOptions options;
  options.addresses = {balancer.address()};
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  for (int i = 0; i < rounds; ++i) {
    for (size_t victim = 0; victim < kServers; ++victim) {
      cluster.load().AwaitSteps(500);
      const SteadyClock::time_point now = SteadyClock::now();
      ChildProcess& server = cluster.server(victim).child;
      server.Signal(SIGTERM);
      EXPECT_EQ(server.Wait(), 0) << "round " << i << ", server " << victim;
      EXPECT_THAT(server.DrainError(), Not(HasSubstr("the drain timeout has passed"))) << "server " << victim;
      cluster.Record(cluster.load().AwaitEverySequence(now));
      ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
      ASSERT_TRUE(balancer.AwaitDown(victim));
      ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
      ASSERT_TRUE(balancer.AwaitUp(victim));
    }
  }
  EXPECT_GE(cluster.Counters().drain_moves, static_cast<uint64_t>(rounds) * 2);
  EXPECT_EQ(cluster.Counters().moves, 0u) << "nobody waits for the end of a server";
  cluster.Report("rolling restart behind HAProxy", rounds);
  cluster.ExpectUndisturbed();
}

TEST_F(BalancerTest, ADamagedShard) {
  const int rounds = LongForm() ? 10 : 1;
  OwnTables tables;
  Cluster cluster(tables.Change());
  Balancer balancer(cluster);
  client::ReplicatedOptions options = Cluster::Options();
  options.addresses = {balancer.address()};
  const auto unreadable = [](const absl::Status& status) {
    return absl::IsDataLoss(status) && client::ErrorReason(status) == client::Reason::kTableUnreadable;
  };
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options, unreadable));
  for (int round = 0; round < rounds; ++round) {
    const size_t victim = cluster.AwaitBusy(static_cast<size_t>(round));
    const uint64_t resent = cluster.load().resent(), moves = cluster.Counters().drain_moves;
    const SteadyClock::time_point now = SteadyClock::now();
    tables.Halve(victim);
    ASSERT_TRUE(balancer.AwaitDown(victim));
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    EXPECT_GT(cluster.load().resent(), resent) << "nobody met the damage";
    EXPECT_GT(cluster.Counters().drain_moves, moves);
    // The server has nothing any more, and drains at once.
    ServerProcess& server = cluster.server(victim);
    ASSERT_TRUE(AwaitMetrics(server.metrics_port,
                             [](const std::string& page) { return MetricValue(page, "pleiad_sequences") == 0; }));
    tables.Mend();
    server.child.Signal(SIGTERM);
    EXPECT_EQ(server.child.Wait(), 0);
    ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
    ASSERT_TRUE(balancer.AwaitUp(victim));
  }
  cluster.Report("damaged shard behind HAProxy", rounds);
  cluster.ExpectUndisturbed();
}

}  // namespace
}  // namespace pleiad::testing
