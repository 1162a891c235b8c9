// One thing that waits in the queues of carries. Internal to the engine; guarded by the engine's lock except where
// a member says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/engine/aux_blob.h"
#include "core/engine/carry_state.h"
#include "core/engine/engine.h"
#include "core/engine/failure.h"
#include "core/rows/row_store.h"

namespace pleiad {

struct Carry;
struct Sequence;

enum class OpKind : uint8_t { kStep, kPrestage, kLookup, kGet, kSnapshot, kRestore, kRelease, kReleaseAfter };

// kQueued: not at the head of all its queues. kResolving: its rows are being found. kReady: waits for the device
// thread. kRunning: past refusal; only the device can fail it.
enum class OpState : uint8_t { kQueued, kResolving, kReady, kRunning, kDone };

struct Op {
  virtual ~Op() = default;
  // The answer as a call to make without the lock.
  virtual std::function<void()> Answer(Outcome outcome) = 0;
  // Moves its row plans to `out`, to be ended without the lock.
  virtual void GivePlans(std::vector<std::shared_ptr<RowPlan>>& out) { (void)out; }

  OpKind kind = OpKind::kStep;
  OpState state = OpState::kQueued;
  uint64_t arrival = 0;
  uint64_t epoch = 0;
  std::vector<Carry*> carries;                 // whose queues it is in
  uint32_t waits = 0;                          // queues it is not at the head of, plus a request it follows
  std::optional<Outcome> refused;              // fails with this at its turn
  std::vector<std::shared_ptr<Op>> followers;  // release_after
  absl::Time arrived, begun, ready, enqueued;
  absl::Time deadline = absl::InfiniteFuture();
  bool timed = false;  // `timer` is its place among the engine's deadlines
  std::multimap<absl::Time, std::shared_ptr<Op>>::iterator timer;
};

using OpPtr = std::shared_ptr<Op>;

// One segment of a step at its turn.
struct SegmentWork {
  Sequence* sequence = nullptr;  // null: unknown, or the throw-away carry
  SequenceId id;
  Carry* carry = nullptr;
  uint32_t first_token = 0;  // of the request
  StepStart start;
  bool prestaged = false;  // its rows are the carry's prestage
  size_t first_row = 0;    // into the ids of its plan
};

struct StepOp : Op {
  std::function<void()> Answer(Outcome outcome) override;
  void GivePlans(std::vector<std::shared_ptr<RowPlan>>& out) override;

  StepRequest request;
  std::function<void(StepResult)> done;
  LayerOrdinal layer;
  std::vector<SegmentWork> segments;  // as in the request
  // Written by the resolving thread until the state is kReady, then by the device thread.
  std::vector<std::shared_ptr<RowPlan>> plans;  // one; of a prestage some, each for one or more segments
  uint32_t plans_pending = 0;  // answers of the row store still due, plus one while plans are being made
  bool made = false;           // all plans are made; until then an abort waits
  bool hashed = false;         // the device finds its rows
  bool fills = false;          // of a prestage: some of its rows are still to be copied to their slots
  Outcome resolve_outcome;
  StepResult result;
  std::byte* output = nullptr;
  bool client_ready = false;   // its memory was seen to be
  bool awaits_client = false;  // it waits for that
  bool limited_wait = false;   // `deadline` is of that wait alone
  uint64_t output_bytes = 0;
  // Once the device is done.
  absl::Time done_at;
  uint32_t batch_tokens = 0;
  std::optional<Outcome> undelivered;  // why its output did not get to its place
};

struct LookupOp : Op {
  std::function<void()> Answer(Outcome outcome) override;
  void GivePlans(std::vector<std::shared_ptr<RowPlan>>& out) override;

  LookupRequest request;
  std::function<void(LookupResult)> done;
  LayerOrdinal layer;
  std::vector<RowId> warm;  // when not empty these rows are brought into the cache, and nothing else is done
  std::unique_ptr<RowPlan> plan;
  uint32_t plans_pending = 0;
  bool made = false;
  Outcome resolve_outcome;
  LookupResult result;
};

// Get, Snapshot, Restore, Release: of one sequence, on all its carries.
struct SequenceOp : Op {
  Sequence* sequence = nullptr;
  SequenceId id;
};

struct GetOp : SequenceOp {
  std::function<void()> Answer(Outcome outcome) override;
  std::function<void(GetSequenceResult)> done;
  GetSequenceResult result;
};

struct SnapshotOp : SequenceOp {
  std::function<void()> Answer(Outcome outcome) override;
  std::function<void(SnapshotResult)> done;
  std::optional<LayerOrdinal> layer;
  SnapshotResult result;
};

struct RestoreOp : SequenceOp {
  std::function<void()> Answer(Outcome outcome) override;
  std::function<void(Outcome)> done;
  struct Layer {
    LayerOrdinal layer;
    Position position;
    AuxBlob aux;
  };
  std::vector<Layer> layers;
  // `blobs` have passed CheckBlobs.
  void TakeBlobs(absl::Span<const CarryBlob> blobs, const ModelConfig& config);
};

struct ReleaseOp : SequenceOp {
  std::function<void()> Answer(Outcome outcome) override;
  std::function<void(ReleaseResult)> done;  // null of a release_after
};

}  // namespace pleiad
