#include "server/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

constexpr size_t kMaxLabelBytes = 64;
constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxDetailBytes = 256;
constexpr size_t kMaxStatusBytes = 3072;

// At most `bytes`, cut between characters: strings of protobuf are UTF-8.
void CutTo(size_t bytes, std::string& text) {
  if (text.size() <= bytes) return;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  text.resize(bytes);
}

uint64_t Microseconds(absl::Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(duration)));
}

std::optional<Outcome> CheckDType(const std::string& field, v1::DType dtype) {
  if (v1::DType_IsValid(dtype)) return std::nullopt;
  return InvalidField(Reason::kInvalidField, field, absl::StrCat(static_cast<int>(dtype)),
                      "must be DTYPE_F32 (1) or DTYPE_BF16 (2)");
}

std::optional<DType> ToDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_BF16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

std::optional<Outcome> CheckSize(const v1::ForwardRequest& request, uint64_t bytes, const ServiceLimits& limits) {
  if (bytes <= limits.max_message_bytes) return std::nullopt;
  const uint64_t tokens = std::max<uint64_t>(SumTokens(request), static_cast<uint64_t>(request.token_ids_size()));
  if (tokens > limits.max_tokens) {
    return InvalidField(Reason::kTooManyTokens, "token_ids", absl::StrCat(tokens),
                        absl::StrCat("at most ", limits.max_tokens, " (--max-tokens; a token costs ",
                                     4 * uint64_t{limits.channels} + 16, " bytes of message)"));
  }
  return InvalidField(Reason::kSizeMismatch, "request", absl::StrCat(bytes, " bytes"),
                      absl::StrCat("at most ", limits.max_message_bytes,
                                   " bytes (max_message_bytes, from --max-tokens ", limits.max_tokens, ")"));
}

std::optional<Outcome> CheckRequest(const v1::ForwardRequest& request, uint64_t message_bytes,
                                    const ServiceLimits& limits) {
  if (!v1::Mode_IsValid(request.mode())) {
    return InvalidField(Reason::kInvalidField, "mode", absl::StrCat(static_cast<int>(request.mode())),
                        "must be MODE_FORWARD (0) or MODE_PRESTAGE (1)");
  }
  if (!v1::OutputKind_IsValid(request.output().kind())) {
    return InvalidField(Reason::kInvalidField, "output.kind", absl::StrCat(static_cast<int>(request.output().kind())),
                        "must be OUTPUT_KIND_HIGHWAY (0) or OUTPUT_KIND_DELTA (1)");
  }
  if (auto bad = CheckDType("highway.dtype", request.highway().dtype())) return bad;
  if (auto bad = CheckDType("output.dtype", request.output().dtype())) return bad;
  return CheckSize(request, message_bytes, limits);
}

StepInput ToStepInput(const v1::Tensor& tensor, const TensorBytes& bytes) {
  StepInput input;
  input.dtype = ToDType(tensor.dtype());
  if (tensor.source_case() == v1::Tensor::kData) {
    input.source = StepInput::Source::kData;
    input.bytes = bytes.size();
    const absl::Span<const TensorBytes::Piece> pieces = bytes.pieces();
    if (pieces.size() == 1) {
      input.data = pieces[0].data();
      return input;
    }
    input.pieces.reserve(pieces.size());
    uint64_t at = 0;
    for (const TensorBytes::Piece& piece : pieces) {
      input.pieces.push_back({piece.data(), at, piece.size()});
      at += piece.size();
    }
  } else if (tensor.zeros()) {
    input.source = StepInput::Source::kZeros;
  }
  return input;
}

}  // namespace

StepRequest ToStepRequest(const v1::ForwardRequest& request, const TensorBytes& tensor, uint64_t message_bytes,
                          const ServiceLimits& limits) {
  StepRequest step;
  step.epoch = request.epoch();
  step.mode = request.mode() == v1::MODE_PRESTAGE ? StepMode::kPrestage : StepMode::kForward;
  if (request.has_layer_index()) step.layer = LayerIndex(request.layer_index());
  step.segments.reserve(static_cast<size_t>(request.segments_size()));
  for (const v1::Segment& segment : request.segments()) {
    StepSegment& out = step.segments.emplace_back();
    out.sequence = SequenceId(segment.sequence_id());
    out.num_tokens = segment.num_tokens();
    out.fresh = segment.fresh();
    if (segment.has_position()) out.position = Position(segment.position());
  }
  step.token_ids.assign(request.token_ids().begin(), request.token_ids().end());
  if (request.has_highway()) step.input = ToStepInput(request.highway(), tensor);
  step.output.kind = request.output().kind() == v1::OUTPUT_KIND_DELTA ? OutputKind::kDelta : OutputKind::kHighway;
  step.output.dtype = ToDType(request.output().dtype());
  if (request.timeout_ms() != 0) step.timeout = absl::Milliseconds(request.timeout_ms());
  step.release_after.reserve(static_cast<size_t>(request.release_after_size()));
  for (const uint64_t id : request.release_after()) step.release_after.emplace_back(id);
  step.refused = CheckRequest(request, message_bytes, limits);
  return step;
}

uint64_t SumTokens(const v1::ForwardRequest& request) {
  uint64_t sum = 0;
  for (const v1::Segment& segment : request.segments()) sum += segment.num_tokens();
  return sum;
}

uint64_t OutputBytes(const v1::ForwardRequest& request, const ServiceLimits& limits) {
  const uint64_t tokens = SumTokens(request);
  if (request.mode() != v1::MODE_FORWARD || tokens > limits.max_tokens) return 0;
  const v1::DType dtype =
      request.output().dtype() == v1::DTYPE_UNSPECIFIED ? request.highway().dtype() : request.output().dtype();
  return tokens * limits.channels * (dtype == v1::DTYPE_BF16 ? 2 : 4);
}

void FillResponse(const StepResult& result, v1::ForwardResponse& response) {
  if (result.outcome.ok()) {
    response.mutable_status();
  } else {
    *response.mutable_status() = ToProto(result.outcome);
  }
  for (const StepSegmentResult& segment : result.segments) {
    v1::SegmentResult* out = response.add_segments();
    out->set_sequence_id(segment.sequence.value());
    out->set_position(segment.position.value());
    out->set_low(segment.low.value());
  }
  v1::StepStats* stats = response.mutable_stats();
  const RowCounts& rows = result.stats.rows;
  stats->set_rows(rows.hits + rows.misses + rows.joins);
  stats->set_hits(rows.hits);
  stats->set_misses(rows.misses);
  stats->set_joins(rows.joins);
  stats->set_batch_tokens(result.stats.batch_tokens);
  stats->set_queue_us(Microseconds(result.stats.queue));
  stats->set_resolve_us(Microseconds(result.stats.resolve));
  stats->set_device_us(Microseconds(result.stats.device));
}

v1::DType ToProto(DType dtype) { return dtype == DType::kBf16 ? v1::DTYPE_BF16 : v1::DTYPE_F32; }

v1::Status ToProto(const Outcome& outcome) {
  v1::Status status;
  status.set_code(static_cast<int>(outcome.code));
  status.set_message(outcome.message);
  for (const ErrorDetail& detail : outcome.details) {
    v1::ErrorDetail* out = status.add_details();
    out->set_reason(static_cast<v1::Reason>(detail.reason));
    if (detail.segment) out->set_segment(*detail.segment);
    out->set_field(detail.field);
    out->set_value(detail.value);
    out->set_limit(detail.limit);
    if (detail.position) out->set_position(detail.position->value());
    if (detail.low) out->set_low(detail.low->value());
  }
  return status;
}

grpc::Status ToGrpcStatus(const Outcome& outcome) {
  if (outcome.ok()) return grpc::Status::OK;
  std::string message = outcome.message;
  CutTo(kMaxMessageBytes, message);
  return grpc::Status(static_cast<grpc::StatusCode>(outcome.code), message);
}

std::string ToStatusMetadata(const Outcome& outcome) {
  // Fewer than this fit where each says something.
  constexpr size_t kMostDetails = 256;
  Outcome first{.code = outcome.code, .message = outcome.message, .details = {}};
  first.details.assign(outcome.details.begin(), outcome.details.begin() + static_cast<ptrdiff_t>(std::min<size_t>(
                                                                              outcome.details.size(), kMostDetails)));
  v1::Status status = ToProto(first);
  CutTo(kMaxMessageBytes, *status.mutable_message());
  for (v1::ErrorDetail& detail : *status.mutable_details()) {
    // These may quote the client.
    for (std::string* text : {detail.mutable_field(), detail.mutable_value(), detail.mutable_limit()}) {
      CutTo(kMaxDetailBytes, *text);
    }
  }
  while (status.details_size() > 1 && status.ByteSizeLong() > kMaxStatusBytes) status.mutable_details()->RemoveLast();
  return status.SerializeAsString();
}

OpenRequest ToOpenRequest(const v1::OpenSequenceRequest& request) {
  return {.label = request.label(),
          .client_key = request.client_key(),
          .model_id = request.model_id(),
          .layers = ToCarryBlobs(request.layers())};
}

LookupRequest ToLookupRequest(const v1::LookupRequest& request) {
  LookupRequest lookup;
  if (request.has_layer_index()) lookup.layer = LayerIndex(request.layer_index());
  for (const v1::LookupSegment& segment : request.segments()) {
    lookup.segments.push_back({.num_tokens = segment.num_tokens(),
                               .context_ids = {segment.context_ids().begin(), segment.context_ids().end()}});
  }
  lookup.token_ids.assign(request.token_ids().begin(), request.token_ids().end());
  lookup.want_row_ids = request.want_row_ids();
  lookup.want_embeddings = request.want_embeddings();
  return lookup;
}

std::vector<CarryBlob> ToCarryBlobs(const google::protobuf::RepeatedPtrField<v1::LayerAux>& layers) {
  std::vector<CarryBlob> blobs;
  for (const v1::LayerAux& layer : layers) {
    CarryBlob& blob = blobs.emplace_back();
    blob.layer = LayerIndex(layer.layer_index());
    if (layer.has_position()) blob.position = Position(layer.position());
    if (layer.has_crc32()) blob.crc32 = layer.crc32();
    blob.aux = layer.aux();
  }
  return blobs;
}

void FillLayerAux(std::vector<CarryBlob> layers, google::protobuf::RepeatedPtrField<v1::LayerAux>& out) {
  for (CarryBlob& blob : layers) {
    v1::LayerAux* layer = out.Add();
    layer->set_layer_index(blob.layer.value());
    if (blob.position) layer->set_position(blob.position->value());
    if (blob.crc32) layer->set_crc32(*blob.crc32);
    layer->set_aux(std::move(blob.aux));
  }
}

std::optional<Outcome> Check(const v1::OpenSequenceRequest& request) {
  const std::string rule = absl::StrCat("at most ", kMaxLabelBytes);
  if (request.label().size() > kMaxLabelBytes) {
    return InvalidField(Reason::kInvalidField, "label", absl::StrCat(request.label().size(), " bytes"), rule);
  }
  if (request.client_key().size() > kMaxLabelBytes) {
    return InvalidField(Reason::kInvalidField, "client_key", absl::StrCat(request.client_key().size(), " bytes"), rule);
  }
  return std::nullopt;
}

std::optional<Outcome> CheckSequenceId(uint64_t sequence_id) {
  if (sequence_id != 0) return std::nullopt;
  return InvalidField(Reason::kInvalidField, "sequence_id", "0",
                      "names the throw-away carry, which Forward alone takes");
}

Outcome Loading() {
  return Failed(absl::StatusCode::kUnavailable, "the model is being loaded", MakeDetail(Reason::kLoading));
}

Outcome Stopping() {
  return Failed(absl::StatusCode::kUnavailable, "the server is stopping", MakeDetail(Reason::kDraining));
}

Outcome MalformedRequest(const std::string& type) {
  return InvalidField(Reason::kInvalidField, "request", "malformed", absl::StrCat("must be a serialised ", type));
}

Outcome TooLargeRequest(uint64_t bytes, const MessageLimits& limits) {
  return InvalidField(
      Reason::kSizeMismatch, "request", absl::StrCat(bytes, " bytes"),
      absl::StrCat("at most ", limits.bytes, " bytes, and ", limits.parts, " submessages and unknown fields in them"));
}

Outcome TooLargeBesideTensor(const ServiceLimits& limits) {
  return InvalidField(Reason::kTooManyTokens, "request", "too large beside its tensor",
                      absl::StrCat("at most ", limits.max_segments, " segments (--max-tokens + --max-sequences) and ",
                                   limits.request_bytes, " bytes beside highway.data"));
}

Outcome TooManyInFlight(const ServiceLimits& limits) {
  return Failed(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("too much in flight: at most ", limits.inflight_requests, " requests (--max-inflight-requests) of ",
                   limits.inflight_bytes, " bytes together (--max-inflight-bytes)"),
      MakeDetail(Reason::kTooManyInFlight, "", "", absl::StrCat(limits.inflight_requests)));
}

Outcome InvalidField(Reason reason, const std::string& field, const std::string& value, const std::string& rule) {
  return Failed(absl::StatusCode::kInvalidArgument, absl::StrCat(field, value.empty() ? "" : " ", value, ": ", rule),
                MakeDetail(reason, field, value, rule));
}

}  // namespace pleiad
