#include "tests/soak/soak_caller.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad::testing {
namespace {

// Slow is not wrong: the machine may be busy with something else.
constexpr absl::Duration kPatience = absl::Minutes(10);

}  // namespace

absl::StatusOr<client::SequenceSnapshot> SoakHandle::Snapshot(uint32_t layer) {
  return std::visit([&](auto& sequence) { return sequence.Snapshot(layer); }, sequence_);
}

absl::Status SoakHandle::Restore(const client::SequenceSnapshot& snapshot) {
  return std::visit([&](auto& sequence) { return sequence.Restore(snapshot); }, sequence_);
}

absl::StatusOr<bool> SoakHandle::Release() {
  return std::visit([](auto& sequence) { return sequence.Release(); }, sequence_);
}

absl::StatusOr<std::unique_ptr<SoakCaller>> SoakCaller::Connect(SoakClient kind, const std::string& address,
                                                                uint32_t key) {
  std::unique_ptr<SoakCaller> caller(new SoakCaller);
  if (kind == SoakClient::kReplicated) {
    client::ReplicatedOptions options;
    options.addresses = {address};
    options.affinity_key = absl::StrCat("soak-", key);
    options.snapshot_every = 16;
    options.connect_timeout = options.rpc_timeout = options.stall_timeout = options.give_up_after = kPatience;
    absl::StatusOr<std::unique_ptr<client::ReplicatedClient>> client = client::ReplicatedClient::Connect(options);
    if (!client.ok()) return client.status();
    caller->replicated_ = *std::move(client);
    return caller;
  }
  client::ClientOptions options;
  options.address = address;
  options.connect_timeout = options.rpc_timeout = kPatience;
  absl::StatusOr<client::Client> client = client::Client::Connect(options);
  if (!client.ok()) return client.status();
  caller->client_ = *std::move(client);
  if (absl::Status cut = caller->Cut(); !cut.ok()) return cut;
  return caller;
}

absl::StatusOr<SoakHandle> SoakCaller::Open(const client::OpenOptions& options) {
  if (replicated_ != nullptr) {
    absl::StatusOr<client::ReplicatedSequence> sequence = replicated_->OpenSequence(options);
    if (!sequence.ok()) return sequence.status();
    return SoakHandle(*std::move(sequence));
  }
  absl::StatusOr<client::Sequence> sequence = client_->OpenSequence(options);
  if (!sequence.ok()) return sequence.status();
  return SoakHandle(*std::move(sequence));
}

SoakCaller::Answer SoakCaller::Submit(client::Step step, const std::vector<const SoakHandle*>& sequences) {
  if (replicated_ == nullptr) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      step.segments[i].sequence = sequences[i] == nullptr ? nullptr : sequences[i]->one();
    }
    return stream_->Submit(std::move(step));
  }
  std::vector<const client::ReplicatedSequence*> replicated;
  for (const SoakHandle* sequence : sequences) {
    replicated.push_back(sequence == nullptr ? nullptr : sequence->replicated());
  }
  return replicated_->Submit(std::move(step), replicated);
}

absl::Status SoakCaller::Cut() {
  if (stream_ != nullptr) stream_->Close();
  absl::StatusOr<std::unique_ptr<client::StepStream>> stream = client_->OpenStream();
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  return absl::OkStatus();
}

}  // namespace pleiad::testing
