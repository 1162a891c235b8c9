// The two clients of the client library behind one face.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/client.h"
#include "client/replicated_client.h"

namespace pleiad::testing {

enum class SoakClient : uint8_t { kOne, kReplicated };

class SoakHandle {
 public:
  explicit SoakHandle(client::Sequence sequence) : sequence_(std::move(sequence)) {}
  explicit SoakHandle(client::ReplicatedSequence sequence) : sequence_(std::move(sequence)) {}

  absl::StatusOr<client::SequenceSnapshot> Snapshot(uint32_t layer);
  absl::Status Restore(const client::SequenceSnapshot& snapshot);
  absl::StatusOr<bool> Release();
  // Of kOne.
  client::Sequence* one() { return std::get_if<client::Sequence>(&sequence_); }
  const client::Sequence* one() const { return std::get_if<client::Sequence>(&sequence_); }
  const client::ReplicatedSequence* replicated() const { return std::get_if<client::ReplicatedSequence>(&sequence_); }

 private:
  std::variant<client::Sequence, client::ReplicatedSequence> sequence_;
};

// Used by one thread.
class SoakCaller {
 public:
  using Answer = std::future<absl::StatusOr<client::StepResult>>;

  static absl::StatusOr<std::unique_ptr<SoakCaller>> Connect(SoakClient kind, const std::string& address, uint32_t key);

  absl::StatusOr<SoakHandle> Open(const client::OpenOptions& options);
  // `step` names no sequences; null: a throw-away carry.
  Answer Submit(client::Step step, const std::vector<const SoakHandle*>& sequences);
  // Of kOne, else null.
  client::Client* client() { return client_ ? &*client_ : nullptr; }
  // Of kOne: gives up what is unanswered, and goes on with another stream.
  absl::Status Cut();

 private:
  SoakCaller() = default;

  std::optional<client::Client> client_;
  std::unique_ptr<client::StepStream> stream_;
  std::unique_ptr<client::ReplicatedClient> replicated_;
};

}  // namespace pleiad::testing
