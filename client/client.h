// Entry point of the Pleiad client library: the PLE stage of a qwen4_exp model as a remote service.
//
//   absl::StatusOr<Client> client = Client::Connect({.address = "127.0.0.1:50051"});
//   absl::StatusOr<Sequence> sequence = client->OpenSequence({.label = "chat 7"});
//   absl::StatusOr<std::unique_ptr<StepStream>> stream = client->OpenStream();
//   Step step{.segments = {{.sequence = &*sequence, .num_tokens = 3}}, .token_ids = {11, 22, 33}};
//   step.highway.data = ...;  // [3, channels] F32
//   absl::StatusOr<StepResult> result = (*stream)->Run(std::move(step));
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client_options.h"
#include "client/sequence.h"
#include "client/shared_device_memory.h"
#include "client/shared_region.h"
#include "client/step_stream.h"
#include "client/types.h"

namespace pleiad::client {

class Connection;

// Thread-safe, cheap to copy; copies share one connection. Sequences and streams keep the connection alive, in any
// order of destruction. Calls block for one round trip; statuses as in sequence.h.
class Client {
 public:
  // Blocks until the server answers, at most options.connect_timeout, while it is still loading too. The message
  // limits of the connection follow from the server's own. InvalidArgument on bad options, Unavailable or
  // DeadlineExceeded when no server answers.
  static absl::StatusOr<Client> Connect(const ClientOptions& options);
  // Over a connection of the caller's, for tests. Asks it for the model.
  static absl::StatusOr<Client> Over(std::shared_ptr<Connection> connection);

  // As it was when the connection was made.
  const ModelInfo& model() const { return *model_; }

  // Fresh, or from options.layers; with a client key of a live sequence, that one (Sequence::fresh tells).
  // ResourceExhausted (kCarriesFull), Unavailable (kDraining), InvalidArgument (kAuxMalformed,
  // kModelMismatch).
  absl::StatusOr<Sequence> OpenSequence(const OpenOptions& options = {});
  // Takes over the sequence `id`; its old owner's steps are refused once this one has stepped. NotFound.
  absl::StatusOr<Sequence> Attach(SequenceId id);

  // Row ids and embeddings of tokens; touches no sequence.
  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query);

  // "" and "pleiad.v1.Ple": ready to serve. "pleiad.live": the process works.
  absl::StatusOr<HealthState> Health(const std::string& service = "");

  // Memory for highways and outputs of steps, in `shm_dir`, which is the server's --shm-dir as this process sees it; no
  // other has its name. Over a Unix socket, to a server with --allow-client-regions (else Unimplemented). As
  // SharedRegion::Create.
  absl::StatusOr<std::unique_ptr<SharedRegion>> ShareMemory(const std::string& shm_dir, uint64_t bytes);

  // Memory of the server's GPU for highways and outputs of steps, which must both lie there. Else as ShareMemory, with
  // SharedDeviceMemory::Create.
  absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> ShareDeviceMemory(const DeviceMemoryHandles& handles);

  // InvalidArgument on bad options. Connects when the first step is submitted.
  absl::StatusOr<std::unique_ptr<StepStream>> OpenStream(const StreamOptions& options = {});

 private:
  Client(std::shared_ptr<Connection> connection, ModelInfo model);

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<const ModelInfo> model_;
};

}  // namespace pleiad::client
