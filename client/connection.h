// What the client library needs of a server, one call each: the seam for tests and decorators. The library's own
// implementation talks gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client_options.h"
#include "client/types.h"

namespace pleiad::client {

struct WireSegment {
  SequenceId sequence = kThrowAway;
  uint32_t num_tokens = 0;
  bool fresh = false;
  std::optional<uint64_t> position = {};
};

// One step as it is sent.
struct WireStep {
  uint64_t request_id = 0;
  uint64_t epoch = 0;  // 0: unchecked
  StepMode mode = StepMode::kForward;
  std::optional<uint32_t> layer_index = {};
  std::vector<WireSegment> segments = {};
  std::vector<uint32_t> token_ids = {};
  std::optional<RegionSpan> token_region = {};
  Highway highway = {};
  OutputKind output_kind = OutputKind::kHighway;
  std::optional<DType> output_dtype = {};  // absent: as the input
  std::optional<RegionSpan> output_region = {};
  uint32_t timeout_ms = 0;  // 0: none
  std::vector<SequenceId> release_after = {};

  // Whether the bytes of the highway are part of it.
  bool sends_highway() const { return mode == StepMode::kForward && !highway.zeros && !highway.data.empty(); }
};

struct WireReply {
  uint64_t request_id = 0;
  absl::StatusOr<StepResult> result = StepResult{};  // its tensor in `output` or in `output_pieces`
};

struct OpenResult {
  SequenceId sequence = kThrowAway;
  bool existing = false;  // the client key named a live sequence
};

// One ForwardStream. One thread may write while one reads; Cancel is for any thread.
class StepConnection {
 public:
  virtual ~StepConnection() = default;

  // Sends `step`; blocks while the server takes nothing. False: the stream is broken, `step` may have been sent or
  // not.
  [[nodiscard]] virtual bool Write(const WireStep& step) = 0;
  // Blocks for the next reply. Nothing: the stream has ended, call Finish.
  virtual std::optional<WireReply> Read() = 0;
  // Makes Read and Write return soon.
  virtual void Cancel() = 0;
  // How the stream ended. Once, after Read has returned nothing.
  virtual absl::Status Finish() = 0;
};

// A region of the server's for as long as this lives.
class RegionLease {
 public:
  virtual ~RegionLease() = default;
  virtual uint64_t id() const = 0;
};

// Thread-safe. Calls block for one round trip, at most the timeout of ClientOptions, then DeadlineExceeded; they
// return the server's status, with its details (error_info.h), or Unavailable when no server is reached.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual absl::StatusOr<ModelInfo> GetModel() = 0;
  virtual absl::StatusOr<OpenResult> Open(const OpenOptions& options) = 0;
  virtual absl::StatusOr<SequenceStatus> GetSequence(SequenceId sequence, uint64_t epoch) = 0;
  virtual absl::StatusOr<SequenceSnapshot> Snapshot(SequenceId sequence, uint64_t epoch,
                                                    std::optional<uint32_t> layer_index) = 0;
  virtual absl::Status Restore(SequenceId sequence, uint64_t epoch, const SequenceSnapshot& snapshot) = 0;
  // True: there was such a sequence.
  virtual absl::StatusOr<bool> Release(SequenceId sequence, uint64_t epoch) = 0;
  // Does not block and reports nothing. The connection's destructor waits for it within its timeout.
  virtual void ReleaseLater(SequenceId sequence, uint64_t epoch) = 0;
  virtual absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) = 0;
  // One unary step.
  virtual absl::StatusOr<StepResult> Forward(const WireStep& step) = 0;
  // `service`: "" or "pleiad.v1.Ple" (ready to serve), "pleiad.live" (the process works).
  virtual absl::StatusOr<HealthState> Health(const std::string& service) = 0;
  // Never null; a stream that could not be made ends at once. It lives no longer than this.
  virtual std::unique_ptr<StepConnection> OpenStream() = 0;
  // The first `bytes` of a file of the server's --shm-dir. It lives no longer than this.
  virtual absl::StatusOr<std::unique_ptr<RegionLease>> AttachFile(const std::string& path, uint64_t bytes) = 0;
  // Likewise.
  virtual absl::StatusOr<std::unique_ptr<RegionLease>> AttachDeviceMemory(const DeviceMemoryHandles& handles) = 0;
};

// A gRPC connection, with the message limits that the server's own limits call for. Blocks until the server has
// answered GetModel, at most options.connect_timeout; a server that is still loading is waited for. Returns
// InvalidArgument on bad options, else the last status of GetModel. `model` receives what the server serves.
absl::StatusOr<std::shared_ptr<Connection>> ConnectGrpc(const ClientOptions& options, ModelInfo* model);

// Health of a server that may still be loading: waits for an answer at most options.rpc_timeout.
absl::StatusOr<HealthState> CheckHealth(const ClientOptions& options, const std::string& service);

}  // namespace pleiad::client
