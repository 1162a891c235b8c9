#include "client/internal/convert.h"

#include <utility>

#include "absl/strings/cord.h"

namespace pleiad::client::internal {
namespace {

absl::StatusCode ToCode(int code) {
  return code >= 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

v1::DType ToWire(DType dtype) { return dtype == DType::kF32 ? v1::DTYPE_F32 : v1::DTYPE_BF16; }

absl::Status ToStatus(const v1::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  absl::Status result(ToCode(status.code()), status.message());
  if (status.details_size() > 0) result.SetPayload(kStatusTypeUrl, absl::Cord(status.SerializeAsString()));
  return result;
}

absl::Status ToStatus(const grpc::Status& status, const std::string& details) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(ToCode(status.error_code()), status.error_message());
  if (!details.empty()) result.SetPayload(kStatusTypeUrl, absl::Cord(details));
  return result;
}

absl::Status CallStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(kStatusMetadata);
  return ToStatus(status, it == trailers.end() ? std::string() : std::string(it->second.data(), it->second.size()));
}

ModelInfo ToModelInfo(const v1::GetModelResponse& response) {
  ModelInfo info;
  info.model_id = response.model_id();
  info.server_version = response.server_version();
  info.capabilities.assign(response.capabilities().begin(), response.capabilities().end());
  const v1::Geometry& geometry = response.geometry();
  info.hidden_size = geometry.hidden_size();
  info.hc_count = geometry.hc_count();
  info.ple_embed_dim = geometry.ple_embed_dim();
  info.ple_conv_kernel_size = geometry.ple_conv_kernel_size();
  info.ngram_size = geometry.ngram_size();
  info.heads_per_ngram = geometry.heads_per_ngram();
  info.head_dim = geometry.head_dim();
  info.channels = geometry.channels();
  info.state_len = geometry.state_len();
  info.rms_norm_eps = geometry.rms_norm_eps();
  info.vocab_size = response.vocab_size();
  info.eos_token_id = response.eos_token_id();
  if (response.has_image_token_id()) info.image_token_id = response.image_token_id();
  if (response.has_video_token_id()) info.video_token_id = response.video_token_id();
  for (const v1::LayerInfo& layer : response.layers()) {
    info.layers.push_back({layer.layer_index(), layer.rows(), layer.row_dtype(), layer.aux_bytes()});
  }
  info.max_tokens = response.limits().max_tokens();
  info.max_sequences = response.limits().max_sequences();
  info.rollback_tokens = response.limits().rollback_tokens();
  info.max_message_bytes = response.limits().max_message_bytes();
  info.device = response.device();
  info.table_mode = response.table_mode();
  return info;
}

SequenceStatus ToSequenceStatus(const v1::GetSequenceResponse& response) {
  SequenceStatus status;
  for (const v1::SequenceLayer& layer : response.layers()) {
    status.layers.push_back(
        {layer.layer_index(), layer.position(), layer.low(), layer.last_step_start(), layer.prestaged_tokens()});
  }
  status.idle = absl::Milliseconds(response.idle_ms());
  status.epoch = response.epoch();
  return status;
}

LayerAux ToLayerAux(v1::LayerAux* layer) {
  LayerAux result;
  result.layer_index = layer->layer_index();
  if (layer->has_position()) result.position = layer->position();
  if (layer->has_crc32()) result.crc32 = layer->crc32();
  result.aux = std::move(*layer->mutable_aux());
  return result;
}

void ToWire(const LayerAux& layer, v1::LayerAux* out) {
  out->set_layer_index(layer.layer_index);
  if (layer.position.has_value()) out->set_position(*layer.position);
  if (layer.crc32.has_value()) out->set_crc32(*layer.crc32);
  out->set_aux(layer.aux);
}

void ToWire(const OpenOptions& options, v1::OpenSequenceRequest* out) {
  out->set_label(options.label);
  out->set_client_key(options.client_key);
  out->set_model_id(options.model_id);
  for (const LayerAux& layer : options.layers) ToWire(layer, out->add_layers());
}

void ToWire(const LookupQuery& query, v1::LookupRequest* out) {
  if (query.layer_index.has_value()) out->set_layer_index(*query.layer_index);
  for (const LookupSegment& segment : query.segments) {
    v1::LookupSegment* to = out->add_segments();
    to->set_num_tokens(segment.num_tokens);
    to->mutable_context_ids()->Add(segment.context_ids.begin(), segment.context_ids.end());
  }
  out->mutable_token_ids()->Add(query.token_ids.begin(), query.token_ids.end());
  out->set_want_row_ids(query.want_row_ids);
  out->set_want_embeddings(query.want_embeddings);
}

void ToWire(const RegionSpan& span, v1::RegionRef* out) {
  out->set_region_id(span.region_id);
  out->set_offset(span.offset);
  out->set_bytes(span.bytes);
}

void ToWire(const WireStep& step, v1::ForwardRequest* out) {
  out->set_request_id(step.request_id);
  out->set_epoch(step.epoch);
  out->set_mode(step.mode == StepMode::kForward ? v1::MODE_FORWARD : v1::MODE_PRESTAGE);
  if (step.layer_index.has_value()) out->set_layer_index(*step.layer_index);
  for (const WireSegment& segment : step.segments) {
    v1::Segment* to = out->add_segments();
    to->set_sequence_id(static_cast<uint64_t>(segment.sequence));
    to->set_num_tokens(segment.num_tokens);
    to->set_fresh(segment.fresh);
    if (segment.position.has_value()) to->set_position(*segment.position);
  }
  out->mutable_token_ids()->Add(step.token_ids.begin(), step.token_ids.end());
  if (step.token_region.has_value()) ToWire(*step.token_region, out->mutable_token_region());
  out->set_timeout_ms(step.timeout_ms);
  for (const SequenceId id : step.release_after) out->add_release_after(static_cast<uint64_t>(id));
  if (step.mode == StepMode::kPrestage) return;
  out->mutable_output()->set_kind(step.output_kind == OutputKind::kHighway ? v1::OUTPUT_KIND_HIGHWAY
                                                                           : v1::OUTPUT_KIND_DELTA);
  if (step.output_dtype.has_value()) out->mutable_output()->set_dtype(ToWire(*step.output_dtype));
  if (step.output_region.has_value()) ToWire(*step.output_region, out->mutable_output()->mutable_region());
  if (step.highway.region.has_value()) {
    out->mutable_highway()->set_dtype(ToWire(step.highway.dtype));
    ToWire(*step.highway.region, out->mutable_highway()->mutable_region());
  }
  if (step.highway.zeros) {
    out->mutable_highway()->set_dtype(ToWire(step.highway.dtype));
    out->mutable_highway()->set_zeros(true);
  }
  if (!step.sends_highway()) return;
  out->mutable_highway()->set_dtype(ToWire(step.highway.dtype));
  out->mutable_highway()->set_data(step.highway.data.data(), step.highway.data.size());
}

WireReply ToReply(v1::ForwardResponse* response) {
  WireReply reply;
  reply.request_id = response->request_id();
  if (response->status().code() != 0) {
    reply.result = ToStatus(response->status());
    return reply;
  }
  StepResult& result = *reply.result;
  for (const v1::SegmentResult& segment : response->segments()) {
    result.segments.push_back({SequenceId{segment.sequence_id()}, segment.position(), segment.low()});
  }
  v1::Tensor* output = response->mutable_output();
  result.output_dtype = output->dtype() == v1::DTYPE_BF16 ? DType::kBf16 : DType::kF32;
  if (output->has_data()) result.output = std::move(*output->mutable_data());
  const v1::StepStats& stats = response->stats();
  result.stats = {stats.rows(),
                  stats.hits(),
                  stats.misses(),
                  stats.joins(),
                  stats.batch_tokens(),
                  absl::Microseconds(stats.queue_us()),
                  absl::Microseconds(stats.resolve_us()),
                  absl::Microseconds(stats.device_us())};
  result.draining = response->draining();
  return reply;
}

}  // namespace pleiad::client::internal
