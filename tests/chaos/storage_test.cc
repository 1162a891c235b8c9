// Servers whose disks fill up or lose rows of the table, under 64 decoding sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/error_info.h"
#include "tests/chaos/balancer.h"
#include "tests/chaos/cluster.h"
#include "tests/chaos/own_tables.h"
#include "tests/chaos/private_mounts.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using SteadyClock = std::chrono::steady_clock;

// Until the file system has no room left.
void Fill(const std::string& path) {
  std::ofstream file(path);
  const std::string block(512, 'x');
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// A sequence at position 3 that no client of the load knows, so that there is something to keep at every stop.
client::SequenceId OpenOne(const std::string& address) {
  client::Client client = InProcessServer::ConnectTo(address);
  absl::StatusOr<client::Sequence> sequence = client.OpenSequence();
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  client::Step step;
  step.segments.push_back({&*sequence, 3, false, std::nullopt});
  step.token_ids = {11, 22, 33};
  step.highway.zeros = true;
  EXPECT_TRUE((*client.OpenStream())->Run(std::move(step)).ok());
  return std::move(*sequence).Detach();
}

void FullStateDisk(Front front) {
  const int rounds = LongForm() ? 10 : 1;
  TempDir states;
  PrivateMounts mounts;
  for (size_t i = 0; i < kServers; ++i) {
    const std::string folder = states / std::to_string(i);
    std::filesystem::create_directory(folder);
    if (!mounts.Tmpfs(folder, "4m")) GTEST_SKIP() << "cannot mount: " << std::strerror(errno);
  }
  Cluster cluster([&states](size_t server, ClusterServer* own) {
    own->flags.insert(own->flags.end(), {"--state-dir", states / std::to_string(server), "--drain-timeout", "0s"});
  });
  client::ReplicatedOptions options = Cluster::Options();
  const std::unique_ptr<Balancer> balancer = PutInFront(front, cluster, &options);
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  const auto stop = [&](size_t victim, int exit_code) {
    cluster.load().AwaitSteps(500);
    const SteadyClock::time_point now = SteadyClock::now();
    cluster.server(victim).child.Signal(SIGTERM);
    EXPECT_EQ(cluster.server(victim).child.Wait(), exit_code) << cluster.server(victim).child.DrainError();
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    ASSERT_TRUE(balancer == nullptr || balancer->AwaitDown(victim));
  };
  const auto start = [&](size_t victim) {
    ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
    ASSERT_TRUE(balancer == nullptr || balancer->AwaitUp(victim));
  };
  for (int round = 0; round < rounds; ++round) {
    for (size_t victim = 0; victim < kServers; ++victim) {
      const std::string folder = states / std::to_string(victim), address = "unix:" + cluster.socket(victim);
      // Full: what is open is lost, and said to be.
      const client::SequenceId lost = OpenOne(address);
      Fill(folder + "/ballast");
      ASSERT_NO_FATAL_FAILURE(stop(victim, 5));
      EXPECT_THAT(cluster.server(victim).child.DrainError(), HasSubstr("No space left on device"));
      EXPECT_THAT(Names(folder), ::testing::ElementsAre("ballast"));
      ASSERT_NO_FATAL_FAILURE(start(victim));
      EXPECT_TRUE(absl::IsNotFound(InProcessServer::ConnectTo(address).Attach(lost).status()));
      // With room again it is kept.
      const client::SequenceId kept = OpenOne(address);
      std::filesystem::remove(folder + "/ballast");
      ASSERT_NO_FATAL_FAILURE(stop(victim, 0));
      EXPECT_THAT(Names(folder), ::testing::ElementsAre("sequences"));
      ASSERT_NO_FATAL_FAILURE(start(victim));
      EXPECT_THAT(Names(folder), IsEmpty());
      absl::StatusOr<client::Sequence> back = InProcessServer::ConnectTo(address).Attach(kept);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->position(cluster.client(0).model().layers[0].layer_index), 3u);
    }
  }
  cluster.Report(front == Front::kNothing ? "full state disk and one with room"
                                          : "full state disk and one with room behind HAProxy",
                 rounds);
  cluster.ExpectUndisturbed();
}

TEST(StorageTest, AFullStateDisk) { FullStateDisk(Front::kNothing); }

TEST(StorageTest, AFullStateDiskBehindABalancer) {
  if (!Balancer::Installed()) GTEST_SKIP() << "no /usr/sbin/haproxy";
  FullStateDisk(Front::kBalancer);
}

// Each server has a copy of the table of its own; that of one is cut in half while it serves, and mended.
TEST(StorageTest, ADamagedShard) {
  const int rounds = LongForm() ? 10 : 1;
  OwnTables tables;
  Cluster cluster(tables.Change());
  const auto unreadable = [](const absl::Status& status) {
    return absl::IsDataLoss(status) && client::ErrorReason(status) == client::Reason::kTableUnreadable;
  };
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(Cluster::Options(), unreadable));
  for (int round = 0; round < rounds; ++round) {
    cluster.load().AwaitSteps(500);
    const size_t victim = cluster.client(static_cast<size_t>(round) % kClients).replica();
    ServerProcess& server = cluster.server(victim);
    const uint64_t resent = cluster.load().resent(), moves = cluster.Counters().drain_moves;
    const SteadyClock::time_point now = SteadyClock::now();
    tables.Halve(victim);
    // Steps that need what is gone fail, by name.
    const std::optional<std::string> line = server.child.ReadErrorUntil("TABLE_UNREADABLE");
    ASSERT_TRUE(line.has_value());
    EXPECT_THAT(*line, HasSubstr(".safetensors at byte "));
    ASSERT_TRUE(AwaitMetrics(server.metrics_port, [](const std::string& page) {
      return MetricValue(page, "pleiad_ready") == 0 && MetricValue(page, "pleiad_row_read_errors_total") >= 3;
    }));
    // The sequences leave what is not ready, and go on.
    cluster.Record(cluster.load().AwaitEverySequence(now));
    ASSERT_TRUE(cluster.load().failure().ok()) << cluster.load().failure();
    for (size_t c = 0; c < kClients; ++c) EXPECT_NE(cluster.client(c).replica(), victim) << "client " << c;
    EXPECT_GT(cluster.load().resent(), resent) << "nobody met the damage";
    EXPECT_GT(cluster.Counters().drain_moves, moves);
    // Mended and started again.
    tables.Mend();
    server.child.Signal(SIGTERM);
    EXPECT_EQ(server.child.Wait(), 0);
    ASSERT_NO_FATAL_FAILURE(cluster.Restart(victim));
  }
  cluster.Report("damaged shard", rounds);
  cluster.ExpectUndisturbed();
}

}  // namespace
}  // namespace pleiad::testing
