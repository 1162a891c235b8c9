// A server whose device is lost, under clients of three.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/replicated_client.h"
#include "tests/chaos/decoding_load.h"
#include "tests/e2e/in_process_server.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/failing_device.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

constexpr size_t kServers = 3, kClients = 4, kSequences = 16;
constexpr uint32_t kSeed = 16;

class DeviceLossTest : public ::testing::Test {
 protected:
  DeviceLossTest() {
    WriteCheckpoint({}, model_.path());
    for (size_t i = 0; i < kServers; ++i) {
      ServerParts parts;
      parts.wrap_device = [fault = faults_[i]](std::unique_ptr<Device> device, const Geometry&) {
        return std::make_unique<FailingDevice>(std::move(device), fault);
      };
      const auto change = [](ServerFlags& flags) {
        flags.batch_invariant = true;
        flags.threads = 1;
      };
      servers_.push_back(
          std::make_unique<InProcessServer>(model_.path(), change, nullptr, CacheParts{}, std::move(parts)));
    }
  }

  const TempDir model_;
  std::array<std::shared_ptr<DeviceFault>, kServers> faults_{
      std::make_shared<DeviceFault>(), std::make_shared<DeviceFault>(), std::make_shared<DeviceFault>()};
  std::vector<std::unique_ptr<InProcessServer>> servers_;
};

TEST_F(DeviceLossTest, SequencesGoOnElsewhereAsIfNothingHadHappened) {
  client::ReplicatedOptions options;
  for (const auto& server : servers_) options.addresses.push_back(server->address());
  std::vector<std::unique_ptr<client::ReplicatedClient>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    options.affinity_key = absl::StrCat("rank-", i);
    auto client = client::ReplicatedClient::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  std::vector<client::ReplicatedSequence> sequences;
  for (size_t i = 0; i < kSequences; ++i) {
    absl::StatusOr<client::ReplicatedSequence> sequence = clients[i % kClients]->OpenSequence();
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    sequences.push_back(*std::move(sequence));
  }
  DecodingLoad load(kSequences, kSeed, clients[0]->model(),
                    [&](size_t i, client::Step step, client::StepCallback done) {
                      clients[i % kClients]->Submit(std::move(step), {&sequences[i]}, std::move(done));
                    });
  load.Start();
  load.AwaitSteps(500);
  const size_t victim = clients[0]->replica();
  faults_[victim]->next = DeviceCall::kRun;
  EXPECT_EQ(servers_[victim]->Wait(), kExitDeviceLost);
  load.AwaitEverySequence(std::chrono::steady_clock::now());
  load.AwaitSteps(500);
  const std::vector<DecodingLoad::Outcome> outcomes = load.Stop();
  EXPECT_TRUE(load.failure().ok()) << load.failure();
  for (const auto& client : clients) {
    EXPECT_NE(client->replica(), victim);
    EXPECT_EQ(client->counters().dropped, 0u);
  }
  EXPECT_GT(clients[0]->counters().moves, 0u);
  EXPECT_GT(clients[0]->counters().rebuilt, 0u);

  client::Client calm = servers_[(victim + 1) % kServers]->Connect();
  std::vector<client::Sequence> calm_sequences;
  for (size_t i = 0; i < kSequences; ++i) calm_sequences.push_back(*calm.OpenSequence());
  const auto stream = *calm.OpenStream();
  DecodingLoad undisturbed(kSequences, kSeed, calm.model(),
                           [&](size_t i, client::Step step, client::StepCallback done) {
                             step.segments[0].sequence = &calm_sequences[i];
                             stream->Submit(std::move(step), std::move(done));
                           });
  EXPECT_TRUE(undisturbed.Repeat(outcomes) == outcomes);
  stream->Drain();
}

}  // namespace
}  // namespace pleiad::testing
