// The stage as a service without a wire: sequences, their queues and carries, batching, one device.
//
// All calls are thread-safe and wait neither for I/O nor for the device, but for what they say themselves and for
// StepOutput::deliver of small outputs. Callbacks run exactly once, on a thread of the
// engine or inside the call, never while a lock of the engine is held; they must not block. What a request points to
// (tensors) stays valid until its callback has been called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/plan.h"
#include "core/base/strong_id.h"
#include "core/device/device.h"
#include "core/engine/engine_stats.h"
#include "core/engine/failure.h"
#include "core/engine/kept_sequence.h"
#include "core/model/config.h"
#include "core/model/ngram_hasher.h"
#include "core/rows/row_store.h"

namespace pleiad {

enum class StepMode : uint8_t { kForward, kPrestage };

struct StepSegment {
  SequenceId sequence;  // 0: a fresh throw-away carry
  uint32_t num_tokens = 0;
  bool fresh = false;
  std::optional<Position> position;
};

// Highway tensor of a step, [sum of num_tokens, C] row-major.
struct StepInput {
  enum class Source : uint8_t { kAbsent, kData, kZeros };
  Source source = Source::kAbsent;
  std::optional<DType> dtype;       // absent: unspecified (kF32 where source is kZeros)
  const std::byte* data = nullptr;  // of kData, any alignment; null where it lies in `pieces`
  std::vector<TensorPiece> pieces;  // of kData, in several places
  uint64_t bytes = 0;               // all together
};

struct StepOutput {
  OutputKind kind = OutputKind::kHighway;
  std::optional<DType> dtype;  // absent: as the input
  // Called once, after the request was accepted by the rules of the request and before its device work, with the
  // number of bytes; returns where they go. Not called when there is no output. May be called inside Submit.
  std::function<std::byte*(uint64_t bytes)> allocate;
  // Null, or called once after an allocated output was written, before the step is answered and before a later step of
  // its carries begins, on a thread that may block for as long as copying the output takes. An outcome: the step was
  // applied, and has failed.
  std::function<std::optional<Outcome>()> deliver = nullptr;
};

struct StepRequest {
  uint64_t epoch = 0;  // 0: unchecked
  StepMode mode = StepMode::kForward;
  std::optional<LayerIndex> layer;
  std::vector<StepSegment> segments;
  std::vector<uint32_t> token_ids;
  StepInput input;
  StepOutput output;
  absl::Duration timeout = absl::InfiniteDuration();
  std::vector<SequenceId> release_after;
  // Where input.data and the result of output.allocate lie; of kDevice and kPinned without pieces.
  TensorMemory memory = TensorMemory::kHost;
  // What such tensors lie in, held until the step is answered. It waits until all of it is ready, for at most its
  // timeout or, without one, EngineOptions::ready_timeout (DeadlineExceeded); with tensors of kDevice it then runs in a
  // batch of its own.
  std::vector<std::shared_ptr<ClientMemory>> client_memory;
  // A refusal found by the caller (region given, enum unknown): the request is not run, but keeps its place in the
  // queues as a failed step.
  std::optional<Outcome> refused;
};

struct StepSegmentResult {
  SequenceId sequence;
  Position position;
  Position low;
};

struct StepStats {
  RowCounts rows;
  uint32_t batch_tokens = 0;
  absl::Duration queue, resolve, device;
};

struct StepResult {
  Outcome outcome;
  std::vector<StepSegmentResult> segments;
  StepStats stats;
  DType output_dtype = DType::kF32;
};

// Names a submitted step for Cancel.
using StepId = StrongId<struct StepIdTag, uint64_t>;

struct CarryBlob {
  LayerIndex layer;
  std::optional<Position> position;  // absent: 0
  std::optional<uint32_t> crc32;     // zlib's, checked when present
  std::string aux;
};

struct OpenRequest {
  std::string label;
  std::string client_key;
  std::string model_id;  // empty: unchecked
  std::vector<CarryBlob> layers;
  // Who opens it, for who takes the sequence back after a restart: nothing to the engine.
  std::string owner = {};
  // Kept as long as the sequence is open. Its deleter runs under the engine's lock.
  std::shared_ptr<const void> place = nullptr;
  // A refusal found by the caller: nothing new is opened; a live sequence with the client key is still found.
  std::optional<Outcome> refused = std::nullopt;
};
struct OpenResult {
  Outcome outcome;
  SequenceId sequence;
  bool existing = false;
};

struct SequenceLayerState {
  LayerIndex layer;
  Position position, low, last_step_start;
  uint32_t prestaged_tokens = 0;
};
struct GetSequenceResult {
  Outcome outcome;
  std::vector<SequenceLayerState> layers;
  absl::Duration idle;
  uint64_t epoch = 0;
};

struct SnapshotResult {
  Outcome outcome;
  std::vector<CarryBlob> layers;  // position and aux set
};

struct ReleaseResult {
  Outcome outcome;
  bool released = false;  // it was there
};

struct LookupSegment {
  uint32_t num_tokens = 0;
  std::vector<uint32_t> context_ids;  // oldest first
};
struct LookupRequest {
  std::optional<LayerIndex> layer;
  std::vector<LookupSegment> segments;
  std::vector<uint32_t> token_ids;
  bool want_row_ids = false;
  bool want_embeddings = false;
};
struct LookupResult {
  Outcome outcome;
  std::vector<uint64_t> row_ids;  // [T, heads]
  std::string embeddings;         // BF16 [T, E]
};

struct EngineOptions {
  uint32_t max_tokens = 8192;
  uint32_t max_sequences = 1024;
  uint32_t rollback_tokens = 8;
  absl::Duration sequence_ttl = absl::Minutes(10);
  absl::Duration ready_timeout = absl::Seconds(5);  // of steps without a timeout of their own
  Clock* clock = nullptr;                           // null: the system's

  absl::Status Validate() const;
};

struct EngineModel {
  ModelConfig config;
  std::vector<NgramHasher> hashers;  // [layers]
  std::string model_id;
};

class Engine {
 public:
  // `device` was created with max_sequences * layers carries and the same rollback_tokens and max_tokens.
  // Takes `rows` and `device`, and destroys them when it fails. InvalidArgument on bad options, or when there is not
  // one hasher per PLE layer.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options, EngineModel model,
                                                        std::unique_ptr<RowStore> rows, std::unique_ptr<Device> device);
  // Stops as Stop() does.
  virtual ~Engine() = default;

  virtual const EngineOptions& options() const = 0;
  virtual const EngineModel& model() const = 0;
  virtual const DeviceInfo& device_info() const = 0;
  virtual const char* table_mode() const = 0;

  // Device::Import and Device::ImportFile; the only calls that block, for as long as opening takes.
  virtual absl::StatusOr<std::shared_ptr<ClientMemory>> ImportMemory(const ClientMemoryHandles& handles) = 0;
  virtual absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                                   std::shared_ptr<void> until_released) = 0;

  virtual void Open(OpenRequest request, std::function<void(OpenResult)> done) = 0;
  // Joins the queues of all its carries before it returns.
  virtual StepId Submit(StepRequest request, std::function<void(StepResult)> done) = 0;
  // Runs `fn` on the calling thread. What fn gives to the device, with nothing else under way there, is completed by
  // this thread once fn has returned, not by one of the engine's; until then it blocks.
  virtual void Attend(const std::function<void()>& fn) = 0;
  // The step fails with Cancelled unless its device work has begun. Unknown and finished steps: nothing.
  virtual void Cancel(StepId step) = 0;
  virtual void Get(SequenceId sequence, uint64_t epoch, std::function<void(GetSequenceResult)> done) = 0;
  virtual void Snapshot(SequenceId sequence, uint64_t epoch, std::optional<LayerIndex> layer,
                        std::function<void(SnapshotResult)> done) = 0;
  virtual void Restore(SequenceId sequence, uint64_t epoch, std::string model_id, std::vector<CarryBlob> layers,
                       std::function<void(Outcome)> done) = 0;
  // An unknown id is no error.
  virtual void Release(SequenceId sequence, uint64_t epoch, std::function<void(ReleaseResult)> done) = 0;
  virtual void Lookup(LookupRequest request, std::function<void(LookupResult)> done) = 0;

  // Brings rows into the row cache ahead of their use; at most max_tokens * heads of a layer at once.
  virtual void Warm(LayerOrdinal layer, std::vector<RowId> rows, std::function<void(Outcome)> done) = 0;
  // As RowStore::CachedRows.
  virtual std::vector<std::vector<RowId>> CachedRows() const = 0;

  // New sequences are refused (Unavailable, kDraining) from now on.
  virtual void StartDraining() = 0;
  // Nothing open and nothing in flight.
  virtual bool idle() const = 0;
  // Called once, on any thread, when idle() turns true after StartDraining (at once if it is).
  virtual void NotifyWhenIdle(std::function<void()> fn) = 0;
  // Called once when the device is lost; every request in flight fails with Unavailable first.
  virtual void NotifyDeviceLost(std::function<void(absl::Status)> fn) = 0;

  // Fails what has not begun with Unavailable, waits for the device work that has, calls every callback. Returns how
  // many admitted steps were not run. Open sequences can be given away until the engine is destroyed.
  virtual uint64_t Stop() = 0;

  // Gives every open sequence to `sink`, the least recently used first, on the calling thread. Only after Stop; they
  // are stats().sequences then. Blocks.
  // Stops at the sink's first error and returns it; FailedPrecondition before Stop, Internal when the device is lost.
  virtual absl::Status GiveSequences(const SequenceSink& sink) = 0;
  // Opens every sequence that `source` has, in that order, as it was given, or none: at the first error all are closed
  // again. They may have been given with other rollback_tokens (FitRollback). Only before the first request. Blocks.
  // How many there were. The source's error; DataLoss on one that cannot have been given by this model's engine,
  // ResourceExhausted on more than max_sequences, Internal when the device is lost.
  virtual absl::StatusOr<uint64_t> TakeSequences(const SequenceSource& source) = 0;

  virtual EngineStats stats() const = 0;
};

}  // namespace pleiad
