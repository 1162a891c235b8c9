// Clocks that are set by hours and days, of servers and of clients, under 64 decoding sequences: nobody notices.
#include "absl/time/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "tests/chaos/balancer.h"
#include "tests/chaos/cluster.h"
#include "tests/chaos/wall_clock.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"

namespace pleiad::testing {
namespace {

using SteadyClock = std::chrono::steady_clock;

// What is set is what programs and their waits see, and nothing else.
TEST(ClockTest, TheWallClockMovesAndTheMonotonicOneStays) {
  const absl::Time wall = absl::Now();
  const SteadyClock::time_point steady = SteadyClock::now();
  // gRPC waits so, until a time of day. It ends when that has come.
  absl::Notification waits, never;
  std::future<bool> notified = std::async(std::launch::async, [&] {
    waits.Notify();
    return never.WaitForNotificationWithTimeout(absl::Hours(2));
  });
  waits.WaitForNotification();
  ShiftOwnWallClock(absl::Hours(3));
  EXPECT_FALSE(notified.get());
  EXPECT_GT(absl::Now() - wall, absl::Hours(3));
  EXPECT_LT(SteadyClock::now() - steady, std::chrono::hours(1));
  ShiftOwnWallClock(-absl::Hours(6));
  EXPECT_LT(absl::Now() - wall, -absl::Hours(2));
  ShiftOwnWallClock(absl::Hours(3));

  TempDir folder;
  SharedWallClock clock(folder / "clock");
  clock.Shift(absl::Hours(24 * 365));
  std::vector<std::string> command = clock.launcher();
  command.insert(command.end(), {"/bin/date", "+%s"});
  EXPECT_GT(std::stoll(RunToEnd(command).output), absl::ToUnixSeconds(wall + absl::Hours(24 * 364)));
}

void SetClocks(Front front) {
  const int rounds = LongForm() ? 20 : 1;
  TempDir clocks;
  std::vector<std::unique_ptr<SharedWallClock>> clock;
  for (size_t i = 0; i < kServers; ++i) {
    clock.push_back(std::make_unique<SharedWallClock>(clocks / std::to_string(i)));
  }
  Cluster cluster([&clock](size_t server, ClusterServer* own) { own->launcher = clock[server]->launcher(); });
  client::ReplicatedOptions options = Cluster::Options();
  const std::unique_ptr<Balancer> balancer = PutInFront(front, cluster, &options);
  ASSERT_NO_FATAL_FAILURE(cluster.StartLoad(options));
  // How long the slowest sequence waited.
  const auto set = [&](const std::string& what, const std::function<void()>& shift) {
    cluster.load().AwaitSteps(500);
    const SteadyClock::time_point now = SteadyClock::now();
    shift();
    const std::vector<double> waits = cluster.load().AwaitEverySequence(now);
    EXPECT_TRUE(cluster.load().failure().ok()) << what << ": " << cluster.load().failure();
    cluster.Record(waits);
    return *std::max_element(waits.begin(), waits.end());
  };
  const auto at_work = [&](size_t from) {
    return balancer != nullptr ? cluster.AwaitBusy(from) : cluster.client(from % kClients).replica();
  };
  // Behind a balancer a stream that has ended goes on at another server, which knows none of the sequences.
  const auto left = [&] {
    const client::ReplicatedCounters now = cluster.Counters();
    return balancer != nullptr ? now.rebuilt : now.moves;
  };
  const auto kill = [&] {
    const size_t victim = at_work(0);
    const uint64_t before = left();
    const double waited = set("kill", [&] {
      cluster.server(victim).child.Signal(SIGKILL);
      cluster.server(victim).child.Wait();
    });
    EXPECT_GT(left(), before);
    EXPECT_TRUE(balancer == nullptr || balancer->AwaitDown(victim));
    cluster.Restart(victim);
    EXPECT_TRUE(balancer == nullptr || balancer->AwaitUp(victim));
    return waited;
  };
  for (int round = 0; round < rounds; ++round) {
    // All together nothing.
    for (const absl::Duration by :
         {absl::Seconds(2), -absl::Seconds(2), absl::Hours(1), -absl::Hours(2), absl::Hours(1), absl::Hours(24 * 400),
          -absl::Hours(24 * 800), absl::Hours(24 * 400)}) {
      const size_t victim = at_work(static_cast<size_t>(round));
      set(absl::StrCat("server's clock by ", absl::FormatDuration(by)), [&] { clock[victim]->Shift(by); });
      set(absl::StrCat("clients' clock by ", absl::FormatDuration(by)), [&] { ShiftOwnWallClock(by); });
    }
  }
  const client::ReplicatedCounters after = cluster.Counters();
  EXPECT_EQ(after.moves + after.mended + after.resent_steps + after.failed_attempts, 0u) << "somebody noticed";
  // A server that dies is left, whatever the clocks say.
  const double before = kill();
  ShiftOwnWallClock(-absl::Hours(1));
  const double behind = kill();
  ShiftOwnWallClock(absl::Hours(2));
  const double ahead = kill();  // and so it stays: gRPC's timers of the time ahead would wait for it again
  std::cout << absl::StrFormat("sequences of a killed server waited %.2f s; with clocks set back %.2f s, ahead %.2f s",
                               before, behind, ahead)
            << std::endl;
  cluster.Report(front == Front::kNothing ? "clocks set" : "clocks set behind HAProxy", rounds * 16);
  cluster.ExpectUndisturbed();
}

TEST(ClockTest, ClocksThatAreSet) { SetClocks(Front::kNothing); }

TEST(ClockTest, ClocksThatAreSetBehindABalancer) {
  if (!Balancer::Installed()) GTEST_SKIP() << "no /usr/sbin/haproxy";
  SetClocks(Front::kBalancer);
}

TEST(ClockTest, WhatTakesTimeTakesItsTime) {
  TempDir model, clocks;
  WriteCheckpoint({}, model.path());
  SharedWallClock clock(clocks / "clock");
  const auto start = [&](const std::string& ttl) {
    auto server = std::make_unique<ServerProcess>(
        model.path(), "unix:" + (model / "s"),
        std::vector<std::string>{"--sequence-ttl", ttl, "--drain-timeout", "1s", "--threads", "1"}, clock.launcher());
    EXPECT_TRUE(server->WaitUntilReady());
    return server;
  };
  const auto open = [](const ServerProcess& server) {
    return MetricValue(ScrapeMetrics(server.metrics_port), "pleiad_sequences");
  };
  // Set ahead by more than its time: what is idle does not expire; and a drain is not over at once.
  auto server = start("10m");
  client::Client client = InProcessServer::ConnectTo(server->address);
  absl::StatusOr<client::Sequence> sequence = client.OpenSequence();
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  clock.Shift(absl::Hours(1));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.OpenSequence().ok());
  EXPECT_TRUE(sequence->Get().ok());
  EXPECT_GE(open(*server), 1);
  // Set back: a drain with an open sequence ends with its second.
  clock.Shift(-absl::Hours(2));
  server->child.Signal(SIGTERM);
  EXPECT_EQ(server->child.Wait(), 0);
  EXPECT_NE(server->child.DrainError().find("the drain timeout has passed"), std::string::npos);
  // Set back: what is idle expires.
  server = start("1s");
  const auto stub = v1::Ple::NewStub(InProcessServer::ChannelTo(server->address));
  grpc::ClientContext context;
  v1::OpenSequenceResponse response;
  ASSERT_TRUE(stub->OpenSequence(&context, {}, &response).ok());
  clock.Shift(-absl::Hours(1));
  EXPECT_TRUE(AwaitMetrics(server->metrics_port, [](const std::string& page) {
    return MetricValue(page, "pleiad_sequences_closed_total{reason=\"expired\"}") == 1;
  }));
}

// A client that waits for a server to come gives up by its own patience.
TEST(ClockTest, AClientGoesOnConnectingWhenItsClockIsSetAhead) {
  TempDir model;
  WriteCheckpoint({}, model.path());
  const std::string address = "unix:" + (model / "s");
  std::future<absl::Status> connected = std::async(std::launch::async, [&] {
    client::ClientOptions options;
    options.address = address;
    options.connect_timeout = absl::Minutes(10);
    return client::Client::Connect(options).status();
  });
  ShiftOwnWallClock(absl::Hours(1));
  ServerProcess server(model.path(), address, {"--threads", "1", "--log-level", "error"});
  ASSERT_TRUE(server.WaitUntilReady());
  EXPECT_EQ(connected.get(), absl::OkStatus());
}

}  // namespace
}  // namespace pleiad::testing
