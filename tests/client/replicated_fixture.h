// A replicated client of fake servers, on a clock that the test moves.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "client/replicated_client.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/hanging_connection.h"
#include "tests/client/test_steps.h"
#include "tests/support/status_matchers.h"

namespace pleiad::client::testing {

inline constexpr uint32_t kLayer = 1;

// Three replicas, whose connections can hang, a client of them and a sequence of three tokens.
class ReplicatedClockTest : public ::testing::Test {
 protected:
  explicit ReplicatedClockTest(const std::function<void(ReplicatedOptions&)>& change = [](ReplicatedOptions&) {}) {
    for (FakePleServer& server : servers_) {
      options_.addresses.push_back(server.address());
      hangs_[server.address()] = std::make_shared<Hang>();
    }
    options_.affinity_key = "rank-3";
    options_.reconnect_timeout = absl::ZeroDuration();
    options_.connect_timeout = options_.rpc_timeout = absl::Minutes(5);
    options_.give_up_after = absl::Seconds(30);
    options_.stall_timeout = absl::Hours(1);
    change(options_);
    const auto connector = [this](const ClientOptions& to) -> absl::StatusOr<Client> {
      const auto health = CheckHealth(to, "pleiad.v1.Ple");
      if (absl::IsUnavailable(health.status())) return health.status();
      ModelInfo model;
      absl::StatusOr<std::shared_ptr<Connection>> connection = ConnectGrpc(to, &model);
      if (!connection.ok()) return connection.status();
      return Client::Over(std::make_shared<HangingConnection>(*connection, hangs_.at(to.address)));
    };
    client_ = *ReplicatedClient::Connect(options_, connector, &clock_);
    sequence_.emplace(*client_->OpenSequence());
    EXPECT_THAT(Run(*sequence_, 3), pleiad::testing::IsOk());
    first_ = client_->replica();
  }

  // Random tokens, from where the sequence stands.
  std::future<absl::StatusOr<StepResult>> Submit(ReplicatedSequence& sequence, uint32_t tokens) {
    TestStep& from = steps_.emplace_back(RandomStep(&random_, tokens));
    Step step;
    step.segments.push_back({nullptr, tokens, /*fresh=*/false, sequence.position(kLayer)});
    step.token_ids = from.tokens;
    step.highway.data =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from.highway.data()), from.highway.size() * 4);
    return client_->Submit(std::move(step), {&sequence});
  }
  absl::Status Run(ReplicatedSequence& sequence, uint32_t tokens) { return Submit(sequence, tokens).get().status(); }
  // Blocks until the mover waits for its next look at better replicas; how long from now.
  absl::Duration AwaitLookBack() {
    const absl::Duration most = options_.move_back_interval;
    return clock_.AwaitDeadline(clock_.Now() + most / 2, clock_.Now() + most) - clock_.Now();
  }
  // The look, to its end.
  void LookBack() {
    clock_.Advance(AwaitLookBack());
    AwaitLookBack();
  }
  Hang& HangOf(size_t replica) { return *hangs_.at(options_.addresses[replica]); }

  std::array<FakePleServer, 3> servers_;
  std::map<std::string, std::shared_ptr<Hang>> hangs_;
  ReplicatedOptions options_;
  FakeClock clock_;
  std::mt19937 random_{3};
  std::deque<TestStep> steps_;
  std::unique_ptr<ReplicatedClient> client_;
  std::optional<ReplicatedSequence> sequence_;
  size_t first_ = 0;
};

}  // namespace pleiad::client::testing
