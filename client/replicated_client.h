// Several servers as one: a client whose sequences live on one replica and move to another, with what they hold, when
// that one goes.
//
//   absl::StatusOr<std::unique_ptr<ReplicatedClient>> client = ReplicatedClient::Connect(
//       {.addresses = {"ple-0:50051", "ple-1:50051", "ple-2:50051"}, .affinity_key = "rank-17"});
//   absl::StatusOr<ReplicatedSequence> sequence = (*client)->OpenSequence({.label = "chat 7"});
//   Step step{.segments = {{.num_tokens = 3}}, .token_ids = {11, 22, 33}};
//   step.highway.data = ...;  // [3, channels] F32
//   absl::StatusOr<StepResult> result = (*client)->Run(std::move(step), {&*sequence});
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/client_options.h"
#include "client/step.h"
#include "client/types.h"

namespace pleiad::client {

namespace internal {
class Clock;
class ReplicatedCore;
struct ReplicatedRecord;
}  // namespace internal

enum class Failover : uint8_t { kOff, kOn };

struct ReplicatedOptions {
  // "HOST:PORT" or "unix:PATH" each, all different; all serve one model. Of servers that come and go (a StatefulSet
  // that scales) all that there may be: those that are not there are passed over. One may be a balancer's that sends
  // what has one affinity_key to one server (deploy/haproxy); that server counts as a replica then.
  std::vector<std::string> addresses = {};
  // Chooses the replica, by rendezvous hashing, and goes with every call as ClientOptions::affinity_key: an engine
  // rank.
  std::string affinity_key = {};
  // Of every replica, as in ClientOptions.
  std::optional<TlsOptions> tls = {};
  std::string token_file = {};
  // kOff: the sequences stay on one replica and steps fail with it; nothing is kept on this side.
  Failover failover = Failover::kOn;

  // A carry's Snapshot is taken after so many positions; 0: never. What lies between is kept here and replayed.
  uint32_t snapshot_every = 64;
  // Of tokens with their highway, kept per carry beside the snapshot, about. Past it the oldest go, as far as a replay
  // does not need them; a longer step is kept by its last tokens, and its start cannot be moved back to after a move.
  uint64_t max_log_bytes = 4 << 20;

  absl::Duration connect_timeout = absl::Seconds(1);           // of each replica that is tried
  absl::Duration rpc_timeout = absl::Seconds(5);               // of each unary call
  absl::Duration reconnect_timeout = absl::Milliseconds(300);  // to the same replica first, before another is tried
  // Steps that a replica leaves unanswered for so long, and then for rpc_timeout its health, or a prestage of nothing
  // behind them, say that it is gone.
  absl::Duration stall_timeout = absl::Seconds(10);
  // How long steps wait for a replica before they fail; a later step tries again.
  absl::Duration give_up_after = absl::Seconds(30);
  // A replica that could not be used is left alone for a time between these two, doubling, with jitter.
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  // Of the jitter, with affinity_key: clients that have one key, or none, have a seed each.
  uint64_t jitter_seed = 1;
  // After so long, or down to half of it at random, a client whose sequences are not on the first replica of its key
  // looks whether that, or another one before theirs, is ready, and moves them there between two steps; at least 1 ms,
  // 0: never. So load spreads again over servers that are back or new, and not all of it at one time.
  absl::Duration move_back_interval = absl::Minutes(5);
  // Attempts to move, at once and on average.
  double retry_budget = 20;
  double retries_per_second = 1;
  // A step that was on its way when so many replicas were lost fails instead of being sent to one more.
  uint32_t max_losses_of_a_step = 8;

  // Of the replica at `address`.
  ClientOptions Of(const std::string& address) const;
  // InvalidArgument naming the member.
  absl::Status Validate() const;
};

// Since the client was made.
struct ReplicatedCounters {
  uint64_t moves = 0;            // to another replica, or anew to the same one, after a loss
  uint64_t drain_moves = 0;      // away from a replica that drains, or cannot read its table
  uint64_t moves_back = 0;       // to a replica that comes before in the order of the key
  uint64_t failed_attempts = 0;  // to move
  uint64_t given_up = 0;         // times that no replica was found
  uint64_t mended = 0;           // sequences opened again on a replica that had forgotten them
  uint64_t rebuilt = 0;          // sequences built on another replica or again
  uint64_t replayed_tokens = 0;
  uint64_t resent_steps = 0;  // steps sent again after a loss
  uint64_t snapshots = 0;
  // Carries that could not be built and must start over: of a sequence that a client key gave back, moved to before
  // that a moment ago.
  uint64_t dropped = 0;
  uint64_t failures = 0;          // steps that failed because no replica was found
  absl::Duration last_move = {};  // from the loss to the first step that was sent on
  absl::Duration longest_move = {};
};

// Move-only; releases the sequence when destroyed, without blocking. It may outlive its client, and is of no use then.
// As Sequence: calls may come from several threads; moving and destroying it may not run beside them.
class ReplicatedSequence {
 public:
  ReplicatedSequence(ReplicatedSequence&&) noexcept;
  ReplicatedSequence& operator=(ReplicatedSequence&&) noexcept;
  ~ReplicatedSequence();

  // False when the client key named a live sequence.
  bool fresh() const;
  // The end of the last step of this layer that was answered OK.
  uint64_t position(uint32_t layer_index) const;

  // As Sequence's, on the replica where it lives; they wait while it moves. No step of it may be unanswered.
  absl::StatusOr<SequenceSnapshot> Snapshot(std::optional<uint32_t> layer_index = std::nullopt);
  absl::Status Restore(const SequenceSnapshot& snapshot);
  absl::StatusOr<bool> Release();

 private:
  friend class ReplicatedClient;
  ReplicatedSequence(std::shared_ptr<internal::ReplicatedCore> core, std::shared_ptr<internal::ReplicatedRecord> record)
      : core_(std::move(core)), record_(std::move(record)) {}

  std::shared_ptr<internal::ReplicatedCore> core_;
  std::shared_ptr<internal::ReplicatedRecord> record_;
};

// Of each carry this side keeps the last Snapshot that no rewind can reach behind, and the tokens since with their
// highway, as far as a replay needs them. A replica counts as lost when its connection is gone and does not come back
// within reconnect_timeout, when it says UNAVAILABLE (a lost device, a stop), or when it answers neither steps nor what
// is asked after them. Then the next one in rendezvous order that is healthy gets every sequence: opened from the
// snapshot, replayed up to the last step that was answered, then the unanswered steps in order. A step's result is
// given once and is that of one application, in the one line of steps that the sequence has. A replica that has
// forgotten a sequence gets it the same way. One that drains is left between two steps, for what a new connection to
// its own address finds where there is no other, and so is one when a better one is back; it then releases what it had.
// So is one that cannot read its table and is not ready to serve any more; the steps that met the damage fail
// (DataLoss) and may be sent again.
//
// Statuses of a step: as StepStream's, Unavailable only when no replica was found. Regions of shared memory are
// InvalidArgument: another server cannot read them.
//
// Thread-safe. The destructor fails unanswered steps with Cancelled and may not run inside a callback.
class ReplicatedClient {
 public:
  // How a replica is reached, for tests. One that is not ready is not waited for: the others may be.
  using Connector = std::function<absl::StatusOr<Client>(const ClientOptions&)>;
  static absl::StatusOr<Client> ConnectIfReady(const ClientOptions& options);

  // Blocks until a replica answers, at most options.give_up_after. InvalidArgument on bad options, else the last
  // replica's status.
  // `clock`, for tests: null is the system's; it outlives the client.
  static absl::StatusOr<std::unique_ptr<ReplicatedClient>> Connect(const ReplicatedOptions& options,
                                                                   Connector connector = &ConnectIfReady,
                                                                   internal::Clock* clock = nullptr);
  ~ReplicatedClient();

  // Of the replica that was reached first; all have its model_id.
  const ModelInfo& model() const;
  // In options.addresses; where the sequences live, or lived last.
  size_t replica() const;
  ReplicatedCounters counters() const;

  // As Client's, and waits while the sequences move.
  absl::StatusOr<ReplicatedSequence> OpenSequence(const OpenOptions& options = {});

  // As StepStream's: `done` is called once, one at a time and in order per carry; it may submit and must not block.
  // `step` names no sequences in its segments: `sequences` does, one for each, null for a throw-away carry.
  void Submit(Step step, const std::vector<const ReplicatedSequence*>& sequences, StepCallback done);
  std::future<absl::StatusOr<StepResult>> Submit(Step step, const std::vector<const ReplicatedSequence*>& sequences);
  absl::StatusOr<StepResult> Run(Step step, const std::vector<const ReplicatedSequence*>& sequences);
  // Waits until every step submitted before has been answered and its callback has returned.
  void Drain();

 private:
  explicit ReplicatedClient(std::shared_ptr<internal::ReplicatedCore> core) : core_(std::move(core)) {}

  const std::shared_ptr<internal::ReplicatedCore> core_;
};

}  // namespace pleiad::client
