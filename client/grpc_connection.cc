#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/internal/channel_access.h"
#include "client/internal/convert.h"
#include "client/internal/deadline.h"
#include "client/internal/mutex.h"
#include "client/internal/raw_stream.h"
#include "client/internal/region_stream.h"
#include "client/internal/step_message.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "proto/wire/forward_message.h"

namespace pleiad::client {
namespace {

using internal::CallStatus;
using internal::ChannelAccess;
using internal::MakeChannel;
using internal::ToReply;
using internal::ToWire;

// The largest answer of Forward, Lookup and Snapshot, with room for what surrounds it.
int ReceiveBytes(const ModelInfo& model) {
  uint64_t snapshot = 0;
  for (const LayerInfo& layer : model.layers) snapshot += layer.aux_bytes + 64;
  const uint64_t lookup =
      uint64_t{model.max_tokens} * (uint64_t{10} * model.heads() + uint64_t{2} * model.ple_embed_dim);
  const uint64_t forward = 2 * model.max_message_bytes;
  return static_cast<int>(std::min<uint64_t>(std::max({snapshot, lookup, forward}) + (64 << 10), INT_MAX));
}

// gRPC's word for a call that the server ended to get its memory back: others may be made. A message that is too large
// has the same code and a status of its own.
bool EndedForMemory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && absl::StartsWith(status.message(), "Received RST_STREAM");
}

std::string ShortOfMemory(const absl::Status& status) {
  return absl::StrCat("the server is short of memory for messages: ", status.message());
}

// Whether a call may be made again that the server may have carried out.
enum class Repeat : uint8_t { kNo, kYes };

class GrpcStepConnection final : public StepConnection {
 public:
  GrpcStepConnection(std::shared_ptr<grpc::Channel> channel, ChannelAccess* access)
      : stream_(std::move(channel), "/pleiad.v1.Ple/ForwardStream", access) {}

  bool Write(const WireStep& step) override { return stream_.Write(internal::SerializeStep(step)); }

  std::optional<WireReply> Read() override {
    grpc::ByteBuffer message;
    if (malformed_ || !stream_.Read(&message)) return std::nullopt;
    if (std::optional<WireReply> reply = internal::ReadPlainReply(message)) return reply;
    auto tensor = std::make_shared<TensorBytes>();
    if (!ParseForwardMessage(&message, &response_, tensor.get())) {
      malformed_ = true;
      stream_.Cancel();
      while (stream_.Read(&message)) {
      }
      return std::nullopt;
    }
    WireReply reply = ToReply(&response_);
    if (reply.result.ok() && tensor->size() > 0) {
      reply.result->output_pieces.pieces.assign(tensor->pieces().begin(), tensor->pieces().end());
      reply.result->output_pieces.owner = std::move(tensor);
    }
    return reply;
  }

  void Cancel() override { stream_.Cancel(); }

  absl::Status Finish() override {
    const grpc::Status status = stream_.Finish();
    if (malformed_) return absl::InternalError("a message that is no ForwardResponse");
    absl::Status ended = CallStatus(status, stream_.context());
    return EndedForMemory(ended) ? absl::UnavailableError(ShortOfMemory(ended)) : ended;
  }

 private:
  internal::RawStream stream_;
  v1::ForwardResponse response_;  // of the reading thread
  bool malformed_ = false;        // of the reading thread
};

class GrpcConnection final : public Connection {
 public:
  GrpcConnection(const ClientOptions& options, std::shared_ptr<ChannelAccess> access, int receive_bytes)
      : options_(options),
        access_(std::move(access)),
        channel_(MakeChannel(options.address, receive_bytes, access_.get())),
        stub_(v1::Ple::NewStub(channel_)) {}

  ~GrpcConnection() override {
    releases_.Shutdown();
    std::thread releaser;
    {
      internal::MutexLock lock(&mutex_);
      releaser = std::move(releaser_);
    }
    if (releaser.joinable()) releaser.join();
  }

  absl::StatusOr<ModelInfo> GetModel() override {
    v1::GetModelResponse response;
    if (absl::Status s = Call(&v1::Ple::Stub::GetModel, v1::GetModelRequest(), &response, Repeat::kYes); !s.ok())
      return s;
    return internal::ToModelInfo(response);
  }

  absl::StatusOr<OpenResult> Open(const OpenOptions& options) override {
    v1::OpenSequenceRequest request;
    ToWire(options, &request);
    v1::OpenSequenceResponse response;
    // With a key the second call finds what the first one opened.
    const Repeat repeat = request.client_key().empty() ? Repeat::kNo : Repeat::kYes;
    if (absl::Status s = Call(&v1::Ple::Stub::OpenSequence, request, &response, repeat); !s.ok()) return s;
    return OpenResult{SequenceId{response.sequence_id()}, response.existing()};
  }

  absl::StatusOr<SequenceStatus> GetSequence(SequenceId sequence, uint64_t epoch) override {
    v1::GetSequenceRequest request = Named<v1::GetSequenceRequest>(sequence, epoch);
    v1::GetSequenceResponse response;
    if (absl::Status s = Call(&v1::Ple::Stub::GetSequence, request, &response, Repeat::kYes); !s.ok()) return s;
    return internal::ToSequenceStatus(response);
  }

  absl::StatusOr<SequenceSnapshot> Snapshot(SequenceId sequence, uint64_t epoch,
                                            std::optional<uint32_t> layer_index) override {
    v1::SnapshotRequest request = Named<v1::SnapshotRequest>(sequence, epoch);
    if (layer_index.has_value()) request.set_layer_index(*layer_index);
    v1::SnapshotResponse response;
    if (absl::Status s = Call(&v1::Ple::Stub::Snapshot, request, &response, Repeat::kYes); !s.ok()) return s;
    SequenceSnapshot snapshot{response.model_id(), {}};
    for (v1::LayerAux& layer : *response.mutable_layers()) snapshot.layers.push_back(internal::ToLayerAux(&layer));
    return snapshot;
  }

  absl::Status Restore(SequenceId sequence, uint64_t epoch, const SequenceSnapshot& snapshot) override {
    v1::RestoreRequest request = Named<v1::RestoreRequest>(sequence, epoch);
    request.set_model_id(snapshot.model_id);
    for (const LayerAux& layer : snapshot.layers) ToWire(layer, request.add_layers());
    v1::RestoreResponse response;
    return Call(&v1::Ple::Stub::Restore, request, &response, Repeat::kNo);
  }

  absl::StatusOr<bool> Release(SequenceId sequence, uint64_t epoch) override {
    v1::ReleaseResponse response;
    const auto request = Named<v1::ReleaseRequest>(sequence, epoch);
    if (absl::Status s = Call(&v1::Ple::Stub::Release, request, &response, Repeat::kNo); !s.ok()) return s;
    return response.released();
  }

  void ReleaseLater(SequenceId sequence, uint64_t epoch) override {
    auto* call = new ReleaseCall;
    call->context.set_deadline(internal::DeadlineIn(options_.release_timeout));
    access_->AddTo(&call->context);
    internal::MutexLock lock(&mutex_);  // the releaser takes it before it deletes the call
    if (!releaser_.joinable()) releaser_ = std::thread([this] { FinishReleases(); });
    call->reader = stub_->AsyncRelease(&call->context, Named<v1::ReleaseRequest>(sequence, epoch), &releases_);
    call->reader->Finish(&call->response, &call->status, call);
  }

  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override {
    v1::LookupRequest request;
    ToWire(query, &request);
    v1::LookupResponse response;
    if (absl::Status s = Call(&v1::Ple::Stub::Lookup, request, &response, Repeat::kYes); !s.ok()) return s;
    LookupResult result;
    result.row_ids.assign(response.row_ids().begin(), response.row_ids().end());
    result.embeddings = std::move(*response.mutable_embeddings()->mutable_data());
    return result;
  }

  absl::StatusOr<StepResult> Forward(const WireStep& step) override {
    v1::ForwardRequest request;
    ToWire(step, &request);
    v1::ForwardResponse response;
    if (absl::Status s = Call(&v1::Ple::Stub::Forward, request, &response, Repeat::kNo); !s.ok()) return s;
    return ToReply(&response).result;
  }

  absl::StatusOr<HealthState> Health(const std::string& service) override {
    // grpc.health.v1's messages, by their wire form: a string field 1, an enum field 1.
    grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value> stub(channel_);
    google::protobuf::StringValue request;
    request.set_value(service);
    google::protobuf::Int32Value response;
    grpc::ClientContext context;
    Prepare(&context);
    grpc::CompletionQueue queue;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    (void)queue.Next(&tag, &ok);
    if (absl::Status s = CallStatus(status, context); !s.ok()) return s;
    if (response.value() == 1) return HealthState::kServing;
    return response.value() == 2 ? HealthState::kNotServing : HealthState::kUnknown;
  }

  std::unique_ptr<StepConnection> OpenStream() override {
    return std::make_unique<GrpcStepConnection>(channel_, access_.get());
  }

  absl::StatusOr<std::unique_ptr<RegionLease>> AttachFile(const std::string& path, uint64_t bytes) override {
    v1::AttachRegionsRequest request;
    request.set_kind(v1::REGION_KIND_SHM_FILE);
    request.set_path(path);
    request.set_bytes(bytes);
    return Attach(request);
  }

  absl::StatusOr<std::unique_ptr<RegionLease>> AttachDeviceMemory(const DeviceMemoryHandles& handles) override {
    v1::AttachRegionsRequest request;
    request.set_kind(v1::REGION_KIND_CUDA_IPC);
    request.set_memory_handle(handles.memory);
    request.set_gpu_uuid(handles.gpu_uuid);
    request.set_ready_event(handles.ready_event);
    request.set_done_event(handles.done_event);
    request.set_offset(handles.offset);
    request.set_bytes(handles.bytes);
    return Attach(request);
  }

 private:
  absl::StatusOr<std::unique_ptr<RegionLease>> Attach(const v1::AttachRegionsRequest& request) {
    auto stream = std::make_unique<internal::RegionStream>(stub_.get(), access_.get());
    const gpr_timespec deadline = internal::DeadlineIn(std::min(options_.rpc_timeout, absl::Hours(24)));
    if (absl::Status s = stream->Attach(request, deadline); !s.ok()) return s;
    return stream;
  }

  // Of a call that the server ends to get its memory back, over a bit more than five seconds.
  static constexpr int kMemoryTries = 10;
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(10);

  struct ReleaseCall {
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ReleaseResponse>> reader;
  };

  // Until the queue is shut down and empty.
  void FinishReleases() {
    void* tag = nullptr;
    bool ok = false;
    while (releases_.Next(&tag, &ok)) {
      internal::MutexLock lock(&mutex_);
      delete static_cast<ReleaseCall*>(tag);
    }
  }

  template <typename Request>
  static Request Named(SequenceId sequence, uint64_t epoch) {
    Request request;
    request.set_sequence_id(static_cast<uint64_t>(sequence));
    request.set_epoch(epoch);
    return request;
  }

  // Of a call that is to begin.
  void Prepare(grpc::ClientContext* context) const { Prepare(context, options_.rpc_timeout); }
  void Prepare(grpc::ClientContext* context, absl::Duration timeout) const {
    access_->AddTo(context);
    if (timeout != absl::InfiniteDuration()) context->set_deadline(internal::DeadlineIn(timeout));
  }

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::Ple::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response, Repeat repeat) {
    const auto begun = std::chrono::steady_clock::now();
    absl::Duration left = options_.rpc_timeout;
    absl::Duration pause = kFirstPause;
    for (int tries = repeat == Repeat::kYes ? kMemoryTries : 1;; --tries, pause *= 2) {
      grpc::ClientContext context;
      Prepare(&context, left);
      const absl::Status status = CallStatus((stub_.get()->*method)(&context, request, response), context);
      if (!EndedForMemory(status)) return status;
      left = options_.rpc_timeout - absl::FromChrono(std::chrono::steady_clock::now() - begun);
      // The server is well and may have carried it out: no reason to leave it.
      if (tries == 1 || pause > left) return absl::ResourceExhaustedError(ShortOfMemory(status));
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(pause));
      left -= pause;
    }
  }

  const ClientOptions options_;
  const std::shared_ptr<ChannelAccess> access_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Ple::Stub> stub_;

  // Releases under way. Not the callback API: its process-wide queue does not survive that the last channel goes and
  // another comes (gRPC 1.51).
  grpc::CompletionQueue releases_;
  internal::Mutex mutex_;
  std::thread releaser_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> ConnectGrpc(const ClientOptions& options, ModelInfo* model) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  const auto begun = std::chrono::steady_clock::now();
  ClientOptions probe_options = options;
  probe_options.rpc_timeout = std::min(options.rpc_timeout, options.connect_timeout);
  absl::StatusOr<std::shared_ptr<ChannelAccess>> access = ChannelAccess::Open(options);
  if (!access.ok()) return access.status();
  GrpcConnection probe(probe_options, *access, 4 << 20);
  for (absl::Duration pause = absl::Milliseconds(20);; pause = std::min(2 * pause, absl::Seconds(1))) {
    absl::StatusOr<ModelInfo> info = probe.GetModel();
    if (info.ok()) {
      *model = *std::move(info);
      break;
    }
    const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - begun);
    if (!absl::IsUnavailable(info.status()) || waited + pause > options.connect_timeout) return info.status();
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(pause));
  }
  return std::make_shared<GrpcConnection>(options, *access, ReceiveBytes(*model));
}

absl::StatusOr<HealthState> CheckHealth(const ClientOptions& options, const std::string& service) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  absl::StatusOr<std::shared_ptr<ChannelAccess>> access = ChannelAccess::Open(options);
  if (!access.ok()) return access.status();
  return GrpcConnection(options, *std::move(access), 4 << 20).Health(service);
}

}  // namespace pleiad::client
