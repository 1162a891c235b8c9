#include "server/ple_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/bounded_message.h"
#include "server/convert.h"
#include "server/forward_exchange.h"
#include "server/forward_stream.h"
#include "server/region_stream.h"
#include "server/unary_call.h"
#include "spdlog/spdlog.h"

namespace pleiad {
namespace {

// A stream that is refused as a whole.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RefusedStream(ServiceState* state, grpc::CallbackServerContext* context, Rpc rpc, const Outcome& outcome) {
    context->AddTrailingMetadata(kStatusMetadataKey, ToStatusMetadata(outcome));
    state->counters.CountRpc(rpc, outcome.code);
    Finish(ToGrpcStatus(outcome));
  }
  void OnDone() override { delete this; }
};

// The time the call's deadline leaves.
absl::Duration Remaining(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteDuration();
  return std::max(absl::ZeroDuration(), absl::FromChrono(deadline - std::chrono::system_clock::now()));
}

uint64_t LookupBytes(const v1::LookupRequest& request, const v1::GetModelResponse& model) {
  const v1::Geometry& geometry = model.geometry();
  const uint64_t tokens =
      std::min<uint64_t>(static_cast<uint64_t>(request.token_ids_size()), model.limits().max_tokens());
  const uint64_t heads = uint64_t{geometry.heads_per_ngram()} * (geometry.ngram_size() - 1);
  return request.ByteSizeLong() + (request.want_row_ids() ? tokens * heads * 8 : 0) +
         (request.want_embeddings() ? tokens * geometry.ple_embed_dim() * 2 : 0);
}

uint64_t AuxBytes(const v1::GetModelResponse& model) {
  uint64_t bytes = 0;
  for (const v1::LayerInfo& layer : model.layers()) bytes += layer.aux_bytes();
  return bytes;
}

// Of requests that name a sequence, or nothing.
constexpr MessageLimits kSmallRequest{.bytes = 64 << 10, .parts = 256};

MessageLimits LimitsOf(Rpc rpc, const ServiceState& state) {
  MessageLimits limits = kSmallRequest;
  if (rpc == Rpc::kOpenSequence || rpc == Rpc::kRestore) {
    limits.bytes += AuxBytes(state.model());
    limits.parts += 2 * static_cast<uint64_t>(state.model().layers_size());
  } else if (rpc == Rpc::kLookup) {
    limits.bytes = state.limits().request_bytes;
    limits.parts += state.limits().max_segments;
  }
  return limits;
}

Outcome TooLarge(Rpc rpc, uint64_t bytes, const MessageLimits& limits, const v1::GetModelResponse& model) {
  Outcome outcome = TooLargeRequest(bytes, limits);
  if (rpc != Rpc::kLookup) return outcome;
  const std::string advice =
      absl::StrCat("; of a segment's context_ids the last ", model.geometry().ngram_size() - 1, " are enough");
  outcome.message += advice;
  outcome.details.front().limit += advice;
  return outcome;
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* PleService::Serve(Rpc rpc, void (PleService::*handle)(const Call&, const Request*, Response*),
                                            grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  struct Messages {
    Request request;
    Response response;
  };
  const Call call = UnaryCall::Create(state_, context, rpc);
  if (const auto refusal = state_->Refusal()) {
    call->Complete(*refusal);
    return call.get();
  }
  const auto messages = std::make_shared<Messages>();
  const MessageLimits limits = LimitsOf(rpc, *state_);
  const BoundedParse parse = ParseBounded(*request, limits, &messages->request);
  if (parse == BoundedParse::kWhole) {
    call->AnswerWith([messages, response] {
      *response = SerializeMessage(messages->response);
      Response().Swap(&messages->response);
    });
    (this->*handle)(call, &messages->request, &messages->response);
  } else if (parse == BoundedParse::kTooLarge) {
    call->Complete(TooLarge(rpc, request->Length(), limits, state_->model()));
  } else {
    call->Complete(MalformedRequest(std::string(Request::descriptor()->name())));
  }
  return call.get();
}

#define PLEIAD_SERVE(rpc)                                                                                             \
  grpc::ServerUnaryReactor* PleService::rpc(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,    \
                                            grpc::ByteBuffer* response) {                                             \
    return Serve<v1::rpc##Request, v1::rpc##Response>(Rpc::k##rpc, &PleService::Do##rpc, context, request, response); \
  }
PLEIAD_SERVE(GetModel)
PLEIAD_SERVE(OpenSequence)
PLEIAD_SERVE(Lookup)
PLEIAD_SERVE(GetSequence)
PLEIAD_SERVE(Snapshot)
PLEIAD_SERVE(Restore)
PLEIAD_SERVE(Release)
#undef PLEIAD_SERVE

void PleService::DoGetModel(const Call& call, const v1::GetModelRequest*, v1::GetModelResponse* response) {
  *response = state_->model();
  call->Complete(Outcome());
}

void PleService::DoOpenSequence(const Call& call, const v1::OpenSequenceRequest* request,
                                v1::OpenSequenceResponse* response) {
  if (const auto bad = Check(*request)) {
    call->Complete(*bad);
  } else if (!call->Admit(request->ByteSizeLong())) {
    state_->counters.CountSequenceRefusal(call->refused_by() == Admission::Limit::kTotal ? SequenceRefusal::kInFlight
                                                                                         : SequenceRefusal::kClient);
    call->Complete(call->refusal());
  } else {
    OpenRequest open = ToOpenRequest(*request);
    open.owner = call->client_name();
    if (call->client() != nullptr) {
      open.place = Client::TakeSequence(call->client());
      if (open.place == nullptr) open.refused = call->client()->TooManySequences();
    }
    const SequenceRefusal bound = open.refused ? SequenceRefusal::kClient : SequenceRefusal::kSequences;
    const auto finish = [call, request, response, bound, state = state_](const OpenResult& result) {
      if (result.outcome.code == absl::StatusCode::kResourceExhausted) state->counters.CountSequenceRefusal(bound);
      if (result.outcome.ok()) state->failures.Named(result.sequence.value(), request->label());
      if (result.outcome.ok() && spdlog::should_log(spdlog::level::debug)) {
        // The id itself is a secret.
        spdlog::debug("{} a sequence, label \"{}\"", result.existing ? "found" : "opened",
                      absl::Utf8SafeCEscape(request->label()));
      }
      response->set_sequence_id(result.sequence.value());
      response->set_existing(result.existing);
      call->Complete(result.outcome);
    };
    state_->engine()->Open(std::move(open), finish);
  }
}

grpc::ServerUnaryReactor* PleService::Forward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  const Call call = UnaryCall::Create(state_, context, Rpc::kForward);
  const auto exchange = std::make_shared_for_overwrite<ForwardExchange>();
  const auto finish = [call, exchange, response, state = state_](StepResult result) {
    const size_t mode = exchange->request().mode() == v1::MODE_PRESTAGE ? 1 : 0;
    if (!result.outcome.ok()) call->About(FailedSequence(result.outcome, exchange->request()));
    *response = exchange->Answer(result, state->draining());
    state->counters.CountItem(mode, result.outcome.code);
    call->Complete(result.outcome);
  };
  const auto refuse = [&finish](const Outcome& outcome) { finish({.outcome = outcome, .segments = {}, .stats = {}}); };
  grpc::ByteBuffer message = *request;
  if (!exchange->Receive(&message, state_->limits())) {
    call->Complete(state_->Refusal().value_or(MalformedRequest()));
  } else if (const auto refusal = state_->Refusal()) {
    refuse(*refusal);
  } else if (!call->Admit(exchange->bytes(state_->limits(), state_->RegionsFor(context->peer())))) {
    refuse(call->refusal());
  } else {
    StepRequest step = exchange->MakeStep(state_->limits(), state_->RegionsFor(context->peer()), &state_->outputs);
    step.timeout = std::min(step.timeout, Remaining(*context));
    call->SetStep(state_->engine()->Submit(std::move(step), finish));
  }
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PleService::ForwardStream(
    grpc::CallbackServerContext* context) {
  if (const auto refusal = state_->Refusal()) {
    return new RefusedStream(state_, context, Rpc::kForwardStream, *refusal);
  }
  return ForwardStream::Start(state_, context);
}

void PleService::DoLookup(const Call& call, const v1::LookupRequest* request, v1::LookupResponse* response) {
  if (!call->Admit(LookupBytes(*request, state_->model()))) {
    call->Complete(call->refusal());
  } else {
    const bool want_embeddings = request->want_embeddings();
    state_->engine()->Lookup(ToLookupRequest(*request), [call, response, want_embeddings](LookupResult result) {
      if (result.outcome.ok()) {
        response->mutable_row_ids()->Add(result.row_ids.begin(), result.row_ids.end());
        if (want_embeddings) {
          response->mutable_embeddings()->set_dtype(v1::DTYPE_BF16);
          response->mutable_embeddings()->set_data(std::move(result.embeddings));
        }
      }
      call->Complete(result.outcome);
    });
  }
}

void PleService::DoGetSequence(const Call& call, const v1::GetSequenceRequest* request,
                               v1::GetSequenceResponse* response) {
  call->About(request->sequence_id());
  if (const auto bad = CheckSequenceId(request->sequence_id())) {
    call->Complete(*bad);
  } else {
    const auto finish = [call, response](const GetSequenceResult& result) {
      for (const SequenceLayerState& layer : result.layers) {
        v1::SequenceLayer* out = response->add_layers();
        out->set_layer_index(layer.layer.value());
        out->set_position(layer.position.value());
        out->set_low(layer.low.value());
        out->set_last_step_start(layer.last_step_start.value());
        out->set_prestaged_tokens(layer.prestaged_tokens);
      }
      response->set_idle_ms(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(result.idle))));
      response->set_epoch(result.epoch);
      call->Complete(result.outcome);
    };
    state_->engine()->Get(SequenceId(request->sequence_id()), request->epoch(), finish);
  }
}

void PleService::DoSnapshot(const Call& call, const v1::SnapshotRequest* request, v1::SnapshotResponse* response) {
  call->About(request->sequence_id());
  if (const auto bad = CheckSequenceId(request->sequence_id())) {
    call->Complete(*bad);
  } else if (!call->Admit(request->ByteSizeLong() + AuxBytes(state_->model()))) {
    call->Complete(call->refusal());
  } else {
    std::optional<LayerIndex> layer;
    if (request->has_layer_index()) layer = LayerIndex(request->layer_index());
    const auto finish = [call, response, state = state_](SnapshotResult result) {
      if (result.outcome.ok()) {
        response->set_model_id(state->model().model_id());
        FillLayerAux(std::move(result.layers), *response->mutable_layers());
      }
      call->Complete(result.outcome);
    };
    state_->engine()->Snapshot(SequenceId(request->sequence_id()), request->epoch(), layer, finish);
  }
}

void PleService::DoRestore(const Call& call, const v1::RestoreRequest* request, v1::RestoreResponse*) {
  call->About(request->sequence_id());
  if (const auto bad = CheckSequenceId(request->sequence_id())) {
    call->Complete(*bad);
  } else if (!call->Admit(request->ByteSizeLong())) {
    call->Complete(call->refusal());
  } else {
    state_->engine()->Restore(SequenceId(request->sequence_id()), request->epoch(), request->model_id(),
                              ToCarryBlobs(request->layers()),
                              [call](const Outcome& outcome) { call->Complete(outcome); });
  }
}

void PleService::DoRelease(const Call& call, const v1::ReleaseRequest* request, v1::ReleaseResponse* response) {
  call->About(request->sequence_id());
  if (const auto bad = CheckSequenceId(request->sequence_id())) {
    call->Complete(*bad);
  } else {
    state_->engine()->Release(SequenceId(request->sequence_id()), request->epoch(),
                              [call, request, response, state = state_](const ReleaseResult& result) {
                                if (result.released) state->failures.Released(request->sequence_id());
                                response->set_released(result.released);
                                call->Complete(result.outcome);
                              });
  }
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PleService::AttachRegions(
    grpc::CallbackServerContext* context) {
  std::optional<Outcome> refusal = state_->Refusal();
  const RegionAccess access = state_->RegionsFor(context->peer());
  if (!refusal && access.table == nullptr) {
    refusal = Failed(absl::StatusCode::kUnimplemented, absl::StrCat("AttachRegions: ", access.refusal),
                     MakeDetail(Reason::kNotSupported, "AttachRegions", "", access.refusal));
  }
  if (!refusal) return RegionStream::Start(state_, context);
  return new RefusedStream(state_, context, Rpc::kAttachRegions, *refusal);
}

}  // namespace pleiad
