#include "client/client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/connection.h"
#include "client/internal/sequence_state.h"

namespace pleiad::client {

Client::Client(std::shared_ptr<Connection> connection, ModelInfo model)
    : connection_(std::move(connection)), model_(std::make_shared<const ModelInfo>(std::move(model))) {}

absl::StatusOr<Client> Client::Connect(const ClientOptions& options) {
  ModelInfo model;
  absl::StatusOr<std::shared_ptr<Connection>> connection = ConnectGrpc(options, &model);
  if (!connection.ok()) return connection.status();
  return Client(*std::move(connection), std::move(model));
}

absl::StatusOr<Client> Client::Over(std::shared_ptr<Connection> connection) {
  absl::StatusOr<ModelInfo> model = connection->GetModel();
  if (!model.ok()) return model.status();
  return Client(std::move(connection), *std::move(model));
}

absl::StatusOr<Sequence> Client::OpenSequence(const OpenOptions& options) {
  absl::StatusOr<OpenResult> opened = connection_->Open(options);
  if (!opened.ok()) return opened.status();
  if (opened->existing) return Attach(opened->sequence);
  auto state = std::make_shared<internal::SequenceState>(connection_, opened->sequence, 0);
  for (const LayerAux& layer : options.layers) state->set_carry(layer.layer_index, {layer.position.value_or(0)});
  return Sequence(std::move(state), Sequence::Origin::kOpened);
}

absl::StatusOr<Sequence> Client::Attach(SequenceId id) {
  absl::StatusOr<SequenceStatus> status = connection_->GetSequence(id, 0);
  if (!status.ok()) return status.status();
  auto state = std::make_shared<internal::SequenceState>(connection_, id, status->epoch);
  for (const SequenceLayer& layer : status->layers) state->set_carry(layer.layer_index, {layer.position});
  return Sequence(std::move(state), Sequence::Origin::kAttached);
}

absl::StatusOr<LookupResult> Client::Lookup(const LookupQuery& query) {
  // Of a longer context the last ids count; a whole history may be more than a request may have.
  const size_t most = std::max(model_->ngram_size, 1u) - 1;
  const auto longer = [most](const LookupSegment& segment) { return segment.context_ids.size() > most; };
  if (std::none_of(query.segments.begin(), query.segments.end(), longer)) return connection_->Lookup(query);
  LookupQuery shorter = query;
  for (LookupSegment& segment : shorter.segments) {
    std::vector<uint32_t>& ids = segment.context_ids;
    if (longer(segment)) ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(most));
  }
  return connection_->Lookup(shorter);
}

absl::StatusOr<HealthState> Client::Health(const std::string& service) { return connection_->Health(service); }

absl::StatusOr<std::unique_ptr<SharedRegion>> Client::ShareMemory(const std::string& shm_dir, uint64_t bytes) {
  return SharedRegion::Create(connection_, shm_dir, bytes);
}

absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> Client::ShareDeviceMemory(const DeviceMemoryHandles& handles) {
  return SharedDeviceMemory::Create(connection_, handles);
}

absl::StatusOr<std::unique_ptr<StepStream>> Client::OpenStream(const StreamOptions& options) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  return StepStream::Create(connection_, model_, options);
}

}  // namespace pleiad::client
