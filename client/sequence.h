// A sequence on the server, owned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/types.h"

namespace pleiad::client {

namespace internal {
class SequenceState;
class StepQueue;
}  // namespace internal

// Move-only; releases the sequence when destroyed, without blocking and without a report (use Release to wait and to
// know). Steps that are still unanswered then may fail with NotFound. Calls on one handle may come from several
// threads; moving and destroying it may not run beside them. A moved-from or released handle answers
// FailedPrecondition.
//
// Every call blocks for one round trip and takes its turn behind the steps that the server has received before it;
// wait for the answers of steps it shall see. Statuses besides the named ones: Aborted (kEpochOld: the sequence has
// a newer owner), NotFound (kSequenceUnknown: released or expired; open again), Unavailable, DeadlineExceeded.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  SequenceId id() const;
  // False when the client key of OpenSequence named a live sequence.
  bool fresh() const { return origin_ == Origin::kOpened; }

  absl::StatusOr<SequenceStatus> Get();
  // All layers, which must stand at one position (FailedPrecondition, kLayersApart), or the one named.
  absl::StatusOr<SequenceSnapshot> Snapshot(std::optional<uint32_t> layer_index = std::nullopt);
  // All or nothing; layers that are not named stay. InvalidArgument (kAuxMalformed,
  // kModelMismatch). No step of the sequence may be unanswered.
  absl::Status Restore(const SequenceSnapshot& snapshot);
  // Ends the sequence. True: the server still had it. On an error the handle keeps the sequence.
  absl::StatusOr<bool> Release();

  // Position the next step of this layer starts at when it names none: the end of the last step that was answered OK.
  uint64_t position(uint32_t layer_index) const;

  // Gives up ownership: the sequence stays until it is released by its id or expires.
  SequenceId Detach() &&;

 private:
  friend class Client;
  friend class internal::StepQueue;
  enum class Origin : uint8_t { kOpened, kAttached };
  Sequence(std::shared_ptr<internal::SequenceState> state, Origin origin);

  std::shared_ptr<internal::SequenceState> state_;
  Origin origin_ = Origin::kOpened;
};

}  // namespace pleiad::client
