// The steps of one stream between submission and answer: which may be sent now, where each starts, what is sent again
// after a break, what fails with its predecessor. Pure: no threads, no I/O.
//
// A carry (sequence, layer) has a lane of unanswered steps in submission order. The head of a lane is *admitted* (it
// goes to the wire) when what is admitted and unanswered on each of its lanes could still be sent again and apply once:
//   - nothing, or with it at most rollback_tokens tokens together: their starts stay within the server's reach;
//   - it starts at or past the start of each of them, and resets nothing: the tokens below a start that is sent again
//     must still be the ones it was to follow;
//   - none of them rewinds and adds tokens: had it failed, a step behind it could land on the tokens it was to replace.
// A prestage moves nothing and is admitted as soon as every step before it is.
// Source: rules 3 and 4 of the service contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/internal/sequence_state.h"
#include "client/step.h"
#include "client/types.h"

namespace pleiad::client::internal {

// Not thread-safe.
class StepQueue {
 public:
  struct Lane;

  // Where a step's output goes: into `bytes`, unless that is empty; else it stays in pieces, or becomes a string.
  struct OutputPlace {
    absl::Span<std::byte> bytes = {};
    bool pieces = false;
  };

  // One step; `wire` is complete once Next has returned it.
  struct Entry {
    struct Place {
      std::shared_ptr<SequenceState> sequence;
      Lane* lane = nullptr;
      uint32_t segment = 0;
      uint64_t start = 0;
      uint64_t end = 0;
      bool names_start = false;  // by position or fresh
      bool fresh = false;
    };
    WireStep wire;
    StepCallback done;
    OutputPlace place;
    std::vector<Place> places;         // of segments with a sequence
    std::optional<absl::Status> doom;  // fails with this when its turn comes
    bool admitted = false;

    bool moves() const { return wire.mode == StepMode::kForward; }
  };

  struct Completion {
    StepCallback done;
    absl::StatusOr<StepResult> result;
    OutputPlace place;

    // Brings the tensor to where the step wants it and calls `done`; once.
    void Deliver();
  };

  // `model` outlives this.
  explicit StepQueue(const ModelInfo& model);
  ~StepQueue();

  // Takes a step. One that is refused on this side keeps its place in its lanes and fails in its turn.
  void Add(Step step, StepCallback done);

  bool HasReady() const { return !ready_.empty(); }
  // Some were sent and are unanswered.
  bool Awaits() const { return admitted_ > ready_.size(); }
  // The next step to send, with its positions and epoch; null when none may be sent now.
  std::shared_ptr<const Entry> Next();
  // The answer to a step that was sent. Unknown ids are ignored.
  void Answer(WireReply reply);
  // The stream broke: everything admitted will be sent again, in order, under a higher epoch.
  void Break();
  // Fails everything.
  void FailAll(const absl::Status& status);
  // What has been answered since the last call, in order.
  std::vector<Completion> TakeCompletions() { return std::exchange(completions_, {}); }

  size_t unanswered() const { return entries_.size(); }
  uint64_t epoch() const { return epoch_; }

 private:
  using EntryPtr = std::shared_ptr<Entry>;
  using LaneKey = std::pair<SequenceState*, uint32_t>;  // the pointer is not followed
  static constexpr size_t kMostIdleLanes = 1024;

  // Why the step cannot be sent, found without the server; fills in the layer.
  absl::Status Prepare(const Step& step, WireStep* wire) const;
  void JoinLanes(const Step& step, Entry* entry);
  // Of each segment; null without a sequence.
  std::vector<Lane*> FindLanes(const Step& step, uint32_t layer_index);
  // Between steps.
  void DropIdleLanes();
  bool Admissible(const Entry& entry) const;
  void Admit(const EntryPtr& entry);
  // Dooms a step without a start of its own that is first behind a failed one.
  static void DoomFollower(Entry* entry);
  // Admits or fails what stands at the head of the entry's lanes, until nothing changes.
  void Advance(std::vector<Lane*> lanes);
  void AdvanceAll();
  // Takes the entry out of its lanes and reports `result`; returns the lanes that go on.
  std::vector<Lane*> Complete(const EntryPtr& entry, absl::StatusOr<StepResult> result);

  const ModelInfo& model_;
  const uint64_t stream_id_;
  uint64_t next_request_id_ = 1;
  uint64_t epoch_ = 1;
  uint64_t wanted_epoch_ = 1;  // above epoch_: nothing is admitted until nothing is unanswered
  size_t admitted_ = 0;
  std::map<uint64_t, EntryPtr> entries_;  // unanswered, by request id
  // Those without steps stay for the next one, though their sequences may be gone, until there are many.
  absl::flat_hash_map<LaneKey, std::unique_ptr<Lane>> lanes_;
  size_t most_lanes_ = kMostIdleLanes;
  std::deque<EntryPtr> ready_;  // admitted, to be sent
  std::vector<Completion> completions_;
};

}  // namespace pleiad::client::internal
