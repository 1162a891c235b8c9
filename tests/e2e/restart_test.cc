// A server that is stopped and started again on the same --state-dir has its open sequences back: clients reconnect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/engine/sequence_file.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/log_lines.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_device_flag.h"

namespace pleiad::testing {
namespace {

client::StreamOptions Patient() {
  client::StreamOptions options;
  options.reconnect_timeout = absl::Minutes(5);
  return options;
}

// Counts what other threads do.
class Counter {
 public:
  void Add() {
    MutexLock lock(&mutex_);
    ++count_;
    changed_.NotifyAll();
  }
  void AwaitMore(uint64_t more) {
    MutexLock lock(&mutex_);
    for (const uint64_t until = count_ + more; count_ < until;) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class RestartTest : public ::testing::Test {
 protected:
  RestartTest() { WriteCheckpoint(TwoLayerSpec(), model_.path()); }

  static void Common(ServerFlags& flags) {
    flags.batch_invariant = true;
    flags.max_sequences = 16;
  }
  // Stops the one before, if there is one.
  void Start(const std::function<void(ServerFlags&)>& change = nullptr) {
    server_.reset();
    server_ = std::make_unique<InProcessServer>(model_.path(), [&](ServerFlags& flags) {
      Common(flags);
      flags.listen = {address_};
      flags.state_dir = state_.path();
      flags.drain_timeout = absl::ZeroDuration();
      if (change) change(flags);
    });
    stub_ = v1::Ple::NewStub(InProcessServer::ChannelTo(address_));
  }
  int Stop() {
    server_->server().Terminate();
    return server_->Wait();
  }
  // Why a server with these flags does not start.
  absl::Status Refusal(const std::function<void(ServerFlags&)>& change) {
    ServerFlags flags;
    flags.model = model_.path();
    flags.listen = {address_};
    flags.metrics_listen = "127.0.0.1:0";
    flags.table = TableFlag::kResident;
    flags.device = TestDeviceFlag();
    flags.max_tokens = 64;
    flags.state_dir = state_.path();
    change(flags);
    auto server = Server::Start(flags, {.clock = nullptr,
                                        .loader = std::make_unique<CheckpointLoader>(flags, nullptr),
                                        .on_ready = nullptr,
                                        .hard_exit = nullptr,
                                        .make_generic = nullptr});
    if (!server.ok()) return server.status();
    const absl::Status status = (*server)->WaitUntilLoaded();
    if (status.ok()) (*server)->Terminate();
    EXPECT_EQ((*server)->Wait(), status.ok() ? kExitDrained : kExitRefused);
    return status;
  }

  client::Client Connect() const { return InProcessServer::ConnectTo(address_); }
  std::string State(client::SequenceId id) { return VisibleState(*stub_, static_cast<uint64_t>(id)); }
  double Metric(const std::string& name) const { return MetricValue(ScrapeMetrics(server_->metrics_port()), name); }
  double Open() const { return Metric("pleiad_sequences"); }

  TempDir model_, state_, sockets_;
  const std::string address_ = "unix:" + (sockets_ / "server");
  const std::string file_ = state_ / "sequences";
  std::unique_ptr<InProcessServer> server_;
  std::unique_ptr<v1::Ple::Stub> stub_;
};

// Four sequences stream steps on two layers while the server restarts again and again.
TEST_F(RestartTest, UnderLoadOutputsEqualAnUndisturbedRun) {
  constexpr int kSequences = 4;
  Start();
  InProcessServer calm_server(model_.path(), Common);
  client::Client client = Connect(), calm = calm_server.Connect();
  Counter answered;
  std::atomic<bool> enough{false};
  std::vector<std::future<void>> clients;
  for (int i = 0; i < kSequences; ++i) {
    clients.push_back(std::async(std::launch::async, [&, i] {
      std::mt19937 random(40 + i);
      const client::Sequence sequence = *client.OpenSequence(), control = *calm.OpenSequence();
      const auto stream = *client.OpenStream(Patient()), calm_stream = *calm.OpenStream();
      const uint32_t layer = i % 2 == 0 ? 1 : 3;
      std::vector<Passage> passages;
      std::vector<std::optional<uint64_t>> starts;
      std::vector<std::future<absl::StatusOr<client::StepResult>>> outputs;
      uint64_t position = 0, last_start = 0;
      for (int step = 0; step < 40 || !enough.load(); ++step) {
        const uint32_t length = 1 + static_cast<uint32_t>(random() % (step % 5 == 0 ? 30 : 4));
        passages.push_back(RandomPassage(random, length, client.model()));
        starts.emplace_back();
        if (step % 7 == 3) starts.back() = last_start;
        if (step % 7 == 5) starts.back() = position - 1;
        last_start = starts.back().value_or(position);
        position = last_start + length;
        outputs.push_back(stream->Submit(StepOf(sequence, passages.back(), 0, length, starts.back(), layer)));
        // A few in flight; their answers are looked at below.
        if (outputs.size() >= 3) outputs[outputs.size() - 3].wait();
        answered.Add();
      }
      for (size_t step = 0; step < outputs.size(); ++step) {
        const auto output = outputs[step].get();
        ASSERT_TRUE(output.ok()) << "step " << step << ": " << output.status();
        const auto expected =
            calm_stream->Run(StepOf(control, passages[step], 0, passages[step].size(), starts[step], layer));
        ASSERT_TRUE(expected.ok()) << expected.status();
        ASSERT_EQ(output->output, expected->output) << "step " << step;
        ASSERT_EQ(output->segments[0].position, expected->segments[0].position) << "step " << step;
        ASSERT_EQ(output->segments[0].low, expected->segments[0].low) << "step " << step;
      }
    }));
  }
  for (int restart = 0; restart < 3; ++restart) {
    answered.AwaitMore(20);
    EXPECT_EQ(Stop(), kExitDrained) << "restart " << restart;
    EXPECT_TRUE(std::filesystem::exists(file_));
    Start();
    EXPECT_FALSE(std::filesystem::exists(file_)) << "what was taken back cannot be taken back twice";
  }
  enough.store(true);
  for (std::future<void>& one : clients) one.get();
}

TEST_F(RestartTest, EveryPositionIsReachableAsBefore) {
  Start();
  InProcessServer calm_server(model_.path(), Common);
  client::Client client = Connect(), calm = calm_server.Connect();
  std::mt19937 random(50);
  const Passage first = RandomPassage(random, 10, client.model()), rest = RandomPassage(random, 30, client.model());
  const auto calm_stream = *calm.OpenStream();
  // Position 40, reached by a step of 30; then back by 3 within the ring.
  const auto prepare = [&](client::StepStream& stream, const client::Sequence& sequence) {
    RunPassage(stream, sequence, first, {}, 1);
    RunPassage(stream, sequence, rest, {}, 1);
    EXPECT_THAT(stream.Run(MoveOf(sequence, 37, 1)), IsOk());
  };
  std::vector<client::Sequence> sequences;
  std::vector<std::string> states;
  {
    const auto stream = *client.OpenStream();
    for (int i = 0; i < 4; ++i) {
      sequences.push_back(*client.OpenSequence({.client_key = absl::StrCat("key-", i)}));
      prepare(*stream, sequences.back());
      states.push_back(State(sequences.back().id()));
    }
  }
  EXPECT_EQ(Stop(), kExitDrained);
  Start();
  EXPECT_EQ(Open(), 4);
  EXPECT_EQ(Metric("pleiad_state_sequences_taken_back"), 4);
  EXPECT_EQ(Metric("pleiad_state_files_set_aside"), 0);
  const auto stream = *client.OpenStream(Patient());
  for (size_t i = 0; i < sequences.size(); ++i) {
    // As it stood, ahead of it nothing, the end of what the ring has, the start of the step of 30 by its undo rows.
    const uint64_t target = std::vector<uint64_t>{37, 36, 32, 10}[i];
    SCOPED_TRACE(target);
    EXPECT_EQ(State(sequences[i].id()), states[i]);
    absl::StatusOr<client::Sequence> again = client.OpenSequence({.client_key = absl::StrCat("key-", i)});
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->id(), sequences[i].id());
    EXPECT_FALSE(again->fresh());
    std::move(*again).Detach();
    const client::Sequence control = *calm.OpenSequence();
    prepare(*calm_stream, control);
    const Passage next = RandomPassage(random, 12, client.model());
    const auto output = stream->Run(StepOf(sequences[i], next, 0, 12, target, 1));
    const auto expected = calm_stream->Run(StepOf(control, next, 0, 12, target, 1));
    ASSERT_THAT(output, IsOk());
    EXPECT_EQ(output->output, expected->output);
  }
  for (client::Sequence& sequence : sequences) EXPECT_TRUE(*sequence.Release());
}

TEST_F(RestartTest, TheOwnerThatRaisedTheEpochKeepsOthersOut) {
  Start();
  client::Client client = Connect();
  const client::Sequence sequence = *client.OpenSequence();
  v1::GetSequenceRequest request;
  request.set_sequence_id(static_cast<uint64_t>(sequence.id()));
  const auto get = [&](uint64_t epoch) {
    request.set_epoch(epoch);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GetSequenceResponse response;
    const grpc::Status status = stub_->GetSequence(&context, request, &response);
    return status.ok() ? absl::StrCat("epoch ", response.epoch()) : absl::StrCat(status.error_code());
  };
  EXPECT_EQ(get(9), "epoch 9");
  EXPECT_EQ(Stop(), kExitDrained);
  Start();
  EXPECT_EQ(get(8), absl::StrCat(grpc::StatusCode::ABORTED));
  EXPECT_EQ(get(0), "epoch 9");
}

TEST_F(RestartTest, WhatAClientHasOpenCountsForItAndIsNamedInLogLinesAsBefore) {
  const auto limit = [](uint32_t sequences) {
    return [sequences](ServerFlags& flags) { flags.access.client_max_sequences = sequences; };
  };
  constexpr auto kOver = absl::StatusCode::kResourceExhausted;
  Start(limit(2));
  client::Client client = Connect();
  client::Sequence first = *client.OpenSequence({.label = "chat 7"}), second = *client.OpenSequence();
  EXPECT_THAT(client.OpenSequence(), FailsWith(kOver, "peer unix: 2 sequences"));
  EXPECT_EQ(Stop(), kExitDrained);
  // Fewer than it has already: it keeps them.
  Start(limit(1));
  EXPECT_EQ(Open(), 2);
  const auto stream = *client.OpenStream(Patient());
  EXPECT_THAT(stream->Run(MoveOf(first, 0, 1)), IsOk());
  EXPECT_THAT(client.OpenSequence(), FailsWith(kOver, "peer unix: 2 sequences: at most 1 sequences"));
  EXPECT_TRUE(*second.Release());
  EXPECT_THAT(client.OpenSequence(), FailsWith(kOver, "peer unix: 1 sequences"));

  spdlog::set_level(spdlog::level::debug);
  {
    LogLines log;
    EXPECT_EQ(first.Restore({}).code(), absl::StatusCode::kOk);
    EXPECT_FALSE(first.Restore({.model_id = "another"}).ok());
    EXPECT_THAT(log.text(), ::testing::HasSubstr("label \"chat 7\""));
  }
  spdlog::set_level(spdlog::level::info);
  EXPECT_TRUE(*first.Release());
  EXPECT_THAT(client.OpenSequence(), IsOk());
}

// The loader of the file sees every length and every byte elsewhere; here the whole server does.
TEST_F(RestartTest, ADamagedOrForeignFileIsSetAsideAndTheServerStarts) {
  Start();
  {
    client::Client client = Connect();
    const auto stream = *client.OpenStream();
    std::mt19937 random(60);
    for (int i = 0; i < 2; ++i) {
      client::Sequence sequence = *client.OpenSequence();
      RunPassage(*stream, sequence, RandomPassage(random, 20, client.model()), {}, 1);
      std::move(sequence).Detach();
    }
  }
  EXPECT_EQ(Stop(), kExitDrained);
  const std::string whole = ReadFile(file_);
  std::vector<std::string> bad = {whole.substr(0, whole.size() - 1), whole.substr(0, whole.size() / 2 + 100), "",
                                  "PLEIADSQ", whole + "x"};
  for (size_t i = 0; i < whole.size(); i += whole.size() / 5) {
    bad.push_back(whole);
    bad.back()[i] = static_cast<char>(bad.back()[i] ^ 0x20);
  }
  TempDir other_model;
  CheckpointSpec other = TwoLayerSpec();
  other.weight_seed = 2;
  WriteCheckpoint(other, other_model.path());
  for (size_t i = 0; i <= bad.size(); ++i) {
    SCOPED_TRACE(i);
    const bool foreign = i == bad.size();
    server_.reset();
    WriteFile(file_, foreign ? whole : bad[i]);
    const LogLines log;
    Start([&](ServerFlags& flags) {
      if (foreign) flags.model = other_model.path();
    });
    EXPECT_EQ(Open(), 0);
    EXPECT_EQ(Metric("pleiad_state_sequences_taken_back"), 0);
    EXPECT_EQ(Metric("pleiad_state_files_set_aside"), 1);
    EXPECT_THAT(log.text(), ::testing::HasSubstr("the open sequences of the last run are not taken back"));
    EXPECT_FALSE(std::filesystem::exists(file_));
    EXPECT_EQ(ReadFile(absl::StrCat(file_, ".bad-", i + 1)), foreign ? whole : bad[i]);
    EXPECT_THAT(Connect().OpenSequence(), IsOk());
  }
  // The same bytes are good in their own server.
  server_.reset();
  WriteFile(file_, whole);
  Start();
  EXPECT_EQ(Open(), 2);
}

TEST_F(RestartTest, OtherFlagsTakeBackWhatFitsOrRefuseByName) {
  Start();
  {
    client::Client client = Connect();
    for (int i = 0; i < 3; ++i) std::move(*client.OpenSequence()).Detach();
  }
  EXPECT_EQ(Stop(), kExitDrained);
  server_.reset();
  const std::string whole = ReadFile(file_);
  EXPECT_THAT(Refusal([](ServerFlags& flags) { flags.max_sequences = 2; }),
              FailsWith(absl::StatusCode::kFailedPrecondition, "--max-sequences 2: must be at least 3"));
  EXPECT_EQ(ReadFile(file_), whole);
  Start([](ServerFlags& flags) {
    flags.max_sequences = 3;
    flags.rollback_tokens = 2;
  });
  EXPECT_EQ(Open(), 3);
  EXPECT_EQ(Connect().OpenSequence().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal([](ServerFlags& flags) { flags.listen = {"127.0.0.1:0"}; }),
              FailsWith(absl::StatusCode::kFailedPrecondition, "must be of one server alone"));
}

TEST_F(RestartTest, WhatCannotBeWrittenIsSaidAndTheExitCodeIs5) {
  Start();
  std::move(*Connect().OpenSequence()).Detach();
  std::filesystem::create_directory(SequenceFileWriter::TemporaryName(file_));
  const LogLines log;
  EXPECT_EQ(Stop(), kExitStateLost);
  EXPECT_THAT(log.text(), ::testing::HasSubstr("1 open sequence(s) are lost"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(RestartTest, WithNothingOpenNothingIsWritten) {
  Start();
  EXPECT_TRUE(*Connect().OpenSequence()->Release());
  EXPECT_EQ(Stop(), kExitDrained);
  EXPECT_FALSE(std::filesystem::exists(file_));
}

}  // namespace
}  // namespace pleiad::testing
