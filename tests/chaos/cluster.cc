#include "tests/chaos/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"

namespace pleiad::testing {
namespace {

constexpr uint32_t kSeed = 64, kMaxResends = 2000;

}  // namespace

bool LongForm() {
  const char* form = std::getenv("PLEIAD_TEST_CHAOS");
  return form != nullptr && std::string(form) == "full";
}

Cluster::Cluster(Change change) : change_(std::move(change)) {
  WriteCheckpoint({}, model_.path());
  for (size_t i = 0; i < kServers; ++i) Restart(i);
}

Cluster::~Cluster() {
  if (load_ != nullptr) load_->Stop();
  sequences_.clear();
  clients_.clear();
}

void Cluster::Restart(size_t server) {
  servers_[server] = nullptr;
  ClusterServer own;
  own.model = model_.path();
  own.flags = {"--batch-invariant", "--max-tokens", "256", "--max-sequences=256", "--threads", "1"};
  if (change_) change_(server, &own);
  own.flags.insert(own.flags.end(), {"--log-level", own.log_level});
  servers_[server] = std::make_unique<ServerProcess>(own.model, "unix:" + socket(server), own.flags, own.launcher);
  ASSERT_TRUE(servers_[server]->WaitUntilReady());
}

std::vector<std::string> Cluster::Addresses() const {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < kServers; ++i) addresses.push_back("unix:" + socket(i));
  return addresses;
}

client::ReplicatedOptions Cluster::Options() {
  client::ReplicatedOptions options;
  options.give_up_after = absl::Minutes(5);
  options.retry_budget = 1e6;
  options.max_losses_of_a_step = 1000;
  return options;
}

void Cluster::StartLoad(const client::ReplicatedOptions& options, std::function<bool(const absl::Status&)> again) {
  for (size_t i = 0; i < kClients; ++i) {
    client::ReplicatedOptions own = options;
    if (own.addresses.empty()) own.addresses = Addresses();
    own.affinity_key = absl::StrCat("rank-", i);
    own.jitter_seed = i;
    auto client = client::ReplicatedClient::Connect(own);
    ASSERT_TRUE(client.ok()) << client.status();
    clients_.push_back(*std::move(client));
  }
  for (size_t i = 0; i < kSequences; ++i) {
    absl::StatusOr<client::ReplicatedSequence> sequence = clients_[i % kClients]->OpenSequence();
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    sequences_.push_back(*std::move(sequence));
  }
  load_ = std::make_unique<DecodingLoad>(
      kSequences, kSeed, clients_[0]->model(), [this](size_t i, client::Step step, client::StepCallback done) {
        clients_[i % kClients]->Submit(std::move(step), {&sequences_[i]}, std::move(done));
      });
  load_->Resend(std::move(again), kMaxResends);
  load_->Start();
}

size_t Cluster::AwaitBusy(size_t from) {
  const auto busy = [this](size_t server) {
    return MetricValue(ScrapeMetrics(servers_[server]->metrics_port), "pleiad_device_busy_seconds_total");
  };
  std::array<double, kServers> before;
  for (size_t i = 0; i < kServers; ++i) before[i] = busy(i);
  while (load_->failure().ok()) {
    load_->AwaitSteps(200);
    for (size_t i = 0; i < kServers; ++i) {
      const size_t server = (from + i) % kServers;
      if (busy(server) > before[server]) return server;
    }
  }
  return 0;
}

client::ReplicatedCounters Cluster::Counters() const {
  client::ReplicatedCounters sum;
  for (const auto& client : clients_) {
    const client::ReplicatedCounters one = client->counters();
    sum.moves += one.moves;
    sum.drain_moves += one.drain_moves;
    sum.failed_attempts += one.failed_attempts;
    sum.given_up += one.given_up;
    sum.mended += one.mended;
    sum.rebuilt += one.rebuilt;
    sum.replayed_tokens += one.replayed_tokens;
    sum.resent_steps += one.resent_steps;
    sum.snapshots += one.snapshots;
    sum.dropped += one.dropped;
    sum.failures += one.failures;
    sum.longest_move = std::max(sum.longest_move, one.longest_move);
  }
  return sum;
}

void Cluster::ExpectUndisturbed(size_t calm_server) {
  const std::vector<DecodingLoad::Outcome> outcomes = load_->Stop();
  EXPECT_TRUE(load_->failure().ok()) << load_->failure();
  EXPECT_EQ(Counters().dropped, 0u);
  client::Client calm = InProcessServer::ConnectTo("unix:" + socket(calm_server));
  std::vector<client::Sequence> sequences;
  for (size_t i = 0; i < kSequences; ++i) sequences.push_back(*calm.OpenSequence());
  const auto stream = *calm.OpenStream();
  DecodingLoad undisturbed(kSequences, kSeed, calm.model(),
                           [&](size_t i, client::Step step, client::StepCallback done) {
                             step.segments[0].sequence = &sequences[i];
                             stream->Submit(std::move(step), std::move(done));
                           });
  const std::vector<DecodingLoad::Outcome> repeated = undisturbed.Repeat(outcomes);
  stream->Drain();
  EXPECT_TRUE(undisturbed.failure().ok()) << undisturbed.failure();
  size_t differing = 0;
  for (size_t i = 0; i < kSequences; ++i) differing += outcomes[i] == repeated[i] ? 0 : 1;
  EXPECT_EQ(differing, 0u) << "of " << kSequences << " sequences";
}

void Cluster::Report(const std::string& what, int times) const {
  std::vector<double> sorted = waits_;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double p) {
    return sorted.empty() ? 0.0 : sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1))] * 1000;
  };
  const client::ReplicatedCounters sum = Counters();
  std::cout << absl::StrFormat(
                   "%s, %d times: sequences waited p50 %.0f ms, p99 %.0f ms, at most %.0f ms; %d steps, %d moves, %d "
                   "drain moves, "
                   "%d sequences rebuilt, %d tokens replayed, %d steps resent, %d snapshots",
                   what, times, at(0.5), at(0.99), at(1), load_->answered(), sum.moves, sum.drain_moves, sum.rebuilt,
                   sum.replayed_tokens, sum.resent_steps, sum.snapshots)
            << std::endl;
}

}  // namespace pleiad::testing
