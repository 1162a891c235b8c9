#include "tests/client/fake_ple_server.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/base/numeric.h"

namespace pleiad::client::testing {
namespace {

v1::Status Refused(grpc::StatusCode code, const std::string& message, v1::Reason reason) {
  v1::Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->set_reason(reason);
  return status;
}

grpc::Status ToGrpc(grpc::ServerContext* context, const v1::Status& status) {
  if (status.code() == 0) return grpc::Status::OK;
  context->AddTrailingMetadata("pleiad-status-bin", status.SerializeAsString());
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

}  // namespace

FakePleServer::FakePleServer(FakeOptions options) : options_(std::move(options)) {
  static std::atomic<uint64_t> servers{0};
  next_id_ = (++servers << 32) + 1;
  address_ = "127.0.0.1:0";
  Restart();
}

FakePleServer::~FakePleServer() { Stop(); }

void FakePleServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_ = nullptr;
}

void FakePleServer::Forget() {
  MutexLock lock(&mutex_);
  sequences_.clear();
  draining_ = false;
  changed_.NotifyAll();
}

std::map<std::string, std::string> FakePleServer::affinities() {
  MutexLock lock(&mutex_);
  return affinities_;
}

grpc::Status FakePleServer::Note(const std::string& method, const grpc::ServerContext& context) {
  const auto value = [&context](const char* key) {
    const auto it = context.client_metadata().find(key);
    return it == context.client_metadata().end() ? "" : std::string(it->second.data(), it->second.size());
  };
  MutexLock lock(&mutex_);
  affinities_[method] = value("x-pleiad-affinity");
  if (token_.empty() || value("authorization") == "Bearer " + token_) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "no such token"};
}

void FakePleServer::Restart() {
  Stop();
  // gRPC 1.51 may abort when the last user of its process-wide callback queue goes and another comes at once; the
  // health service is one. This one stays.
  grpc::EnableDefaultHealthCheckService(true);
  static const grpc::Server* const keeper = grpc::ServerBuilder().BuildAndStart().release();
  (void)keeper;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

grpc::Status FakePleServer::GetModel(grpc::ServerContext* context, const v1::GetModelRequest*,
                                     v1::GetModelResponse* out) {
  if (grpc::Status s = Note("GetModel", *context); !s.ok()) return s;
  {
    MutexLock lock(&mutex_);
    out->set_model_id(model_id_);
  }
  out->set_server_version("0");
  v1::Geometry* geometry = out->mutable_geometry();
  geometry->set_hidden_size(options_.channels);
  geometry->set_hc_count(1);
  geometry->set_channels(options_.channels);
  geometry->set_ngram_size(3);
  geometry->set_heads_per_ngram(kHeads / 2);
  geometry->set_ple_embed_dim(kEmbedDim);
  geometry->set_head_dim(kEmbedDim / kHeads);
  geometry->set_state_len(kStateLen);
  out->set_vocab_size(kVocab);
  out->set_eos_token_id(kEos);
  for (uint32_t layer : options_.layers) {
    v1::LayerInfo* info = out->add_layers();
    info->set_layer_index(layer);
    info->set_rows(1000);
    info->set_row_dtype("BF16");
    info->set_aux_bytes(FakeCarry(options_.channels).Aux(options_.channels).size());
  }
  out->mutable_limits()->set_max_tokens(options_.max_tokens);
  out->mutable_limits()->set_max_sequences(100);
  out->mutable_limits()->set_rollback_tokens(options_.rollback_tokens);
  out->mutable_limits()->set_max_message_bytes(uint64_t{options_.max_tokens} * (4 * options_.channels + 16) + 65536);
  out->set_device("toy");
  out->set_table_mode("resident");
  return grpc::Status::OK;
}

bool FakePleServer::Load(const v1::LayerAux& layer, Sequence* sequence) {
  FakeCarry carry(options_.channels);
  if (std::find(options_.layers.begin(), options_.layers.end(), layer.layer_index()) == options_.layers.end() ||
      layer.aux().size() != carry.Aux(options_.channels).size()) {
    return false;
  }
  std::memcpy(carry.history.data(), layer.aux().data() + 4, 8);
  std::memcpy(carry.rows.data(), layer.aux().data() + 12, carry.rows.size() * 4);
  if (options_.forget_rows_on_restore) std::fill(carry.rows.begin(), carry.rows.end(), 0.f);
  carry.base = carry.position = carry.low = carry.last_step_start = layer.position();
  sequence->carries.insert_or_assign(layer.layer_index(), std::move(carry));
  return true;
}

grpc::Status FakePleServer::OpenSequence(grpc::ServerContext* context, const v1::OpenSequenceRequest* request,
                                         v1::OpenSequenceResponse* out) {
  if (grpc::Status s = Note("OpenSequence", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  if (!request->model_id().empty() && request->model_id() != model_id_) {
    return ToGrpc(context, Refused(grpc::INVALID_ARGUMENT, "another model", v1::REASON_MODEL_MISMATCH));
  }
  for (const auto& [id, sequence] : sequences_) {
    if (request->client_key().empty() || sequence.client_key != request->client_key()) continue;
    out->set_sequence_id(id);
    out->set_existing(true);
    return grpc::Status::OK;
  }
  if (draining_) return ToGrpc(context, Refused(grpc::UNAVAILABLE, "draining", v1::REASON_DRAINING));
  if (sequences_.size() >= room_)
    return ToGrpc(context, Refused(grpc::RESOURCE_EXHAUSTED, "full", v1::REASON_CARRIES_FULL));
  Sequence sequence;
  sequence.client_key = request->client_key();
  for (uint32_t layer : options_.layers) sequence.carries.emplace(layer, FakeCarry(options_.channels));
  for (const v1::LayerAux& layer : request->layers()) {
    if (!Load(layer, &sequence)) {
      return ToGrpc(context, Refused(grpc::INVALID_ARGUMENT, "bad aux", v1::REASON_AUX_MALFORMED));
    }
  }
  out->set_sequence_id(next_id_);
  sequences_.emplace(next_id_++, std::move(sequence));
  return grpc::Status::OK;
}

FakePleServer::Sequence* FakePleServer::Find(uint64_t id, uint64_t epoch, v1::Status* refused) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) {
    *refused = Refused(grpc::NOT_FOUND, "no such sequence", v1::REASON_SEQUENCE_UNKNOWN);
    return nullptr;
  }
  if (epoch != 0 && epoch < it->second.epoch) {
    *refused = Refused(grpc::ABORTED, "epoch is old", v1::REASON_EPOCH_OLD);
    return nullptr;
  }
  it->second.epoch = std::max(it->second.epoch, epoch);
  return &it->second;
}

v1::Status FakePleServer::Check(const v1::ForwardRequest& request, uint32_t layer) {
  v1::Status refused;
  uint64_t tokens = 0;
  for (int i = 0; i < request.segments_size(); ++i) {
    const v1::Segment& segment = request.segments(i);
    tokens += segment.num_tokens();
    if (segment.sequence_id() == 0) continue;
    Sequence* sequence = Find(segment.sequence_id(), request.epoch(), &refused);
    if (sequence == nullptr) return refused;
    const FakeCarry& carry = sequence->carries.at(layer);
    if (request.mode() == v1::MODE_PRESTAGE || segment.fresh() || !segment.has_position()) continue;
    const uint64_t to = segment.position();
    if ((to >= carry.low && to <= carry.position) || (to == carry.last_step_start && to <= carry.position)) {
      continue;
    }
    refused = Refused(grpc::FAILED_PRECONDITION, "position is out of reach", v1::REASON_POSITION_UNREACHABLE);
    refused.mutable_details(0)->set_segment(static_cast<uint32_t>(i));
    refused.mutable_details(0)->set_position(carry.position);
    refused.mutable_details(0)->set_low(carry.low);
    return refused;
  }
  for (uint32_t id : request.token_ids()) {
    if (id >= kVocab) return Refused(grpc::INVALID_ARGUMENT, "token", v1::REASON_TOKEN_OUT_OF_VOCABULARY);
  }
  const size_t bytes = request.highway().zeros() ? tokens * options_.channels * 4 : request.highway().data().size();
  if (tokens != static_cast<uint64_t>(request.token_ids_size()) ||
      (request.mode() == v1::MODE_FORWARD && bytes != tokens * options_.channels * 4)) {
    return Refused(grpc::INVALID_ARGUMENT, "size", v1::REASON_SIZE_MISMATCH);
  }
  if (tokens > 0 && request.mode() == v1::MODE_FORWARD && fail_steps_ > 0) {
    --fail_steps_;
    return Refused(grpc::DATA_LOSS, "table", v1::REASON_TABLE_UNREADABLE);
  }
  return {};
}

void FakePleServer::Run(const v1::ForwardRequest& request, v1::ForwardResponse* response) {
  response->set_request_id(request.request_id());
  response->set_draining(draining_);
  const uint32_t layer = request.has_layer_index() ? request.layer_index() : options_.layers[0];
  *response->mutable_status() = Check(request, layer);
  if (response->status().code() != 0 || request.mode() == v1::MODE_PRESTAGE) return;
  const uint32_t channels = options_.channels;
  std::string* output = response->mutable_output()->mutable_data();
  response->mutable_output()->set_dtype(v1::DTYPE_F32);
  std::vector<float> highway(channels);
  size_t t = 0;
  for (const v1::Segment& segment : request.segments()) {
    FakeCarry throw_away(channels);
    FakeCarry* carry = &throw_away;
    if (segment.sequence_id() != 0) carry = &sequences_.at(segment.sequence_id()).carries.at(layer);
    if (segment.fresh()) *carry = FakeCarry(channels);
    if (!segment.fresh() && segment.has_position()) carry->MoveTo(segment.position(), channels);
    if (segment.num_tokens() > 0) carry->last_step_start = carry->position;
    for (uint32_t i = 0; i < segment.num_tokens(); ++i, ++t) {
      if (!request.highway().zeros()) {
        std::memcpy(highway.data(), request.highway().data().data() + t * channels * 4, channels * 4);
      }
      std::vector<float> delta = carry->Push(request.token_ids(static_cast<int>(t)), highway.data(), channels);
      if (request.output().kind() == v1::OUTPUT_KIND_HIGHWAY) {
        for (uint32_t c = 0; c < channels; ++c) delta[c] += highway[c];
      }
      output->append(reinterpret_cast<const char*>(delta.data()), channels * 4);
    }
    if (carry->position > options_.rollback_tokens) {
      carry->low = std::max(carry->low, carry->position - options_.rollback_tokens);
    }
    v1::SegmentResult* result = response->add_segments();
    result->set_sequence_id(segment.sequence_id());
    result->set_position(carry->position);
    result->set_low(carry->low);
  }
  for (const uint64_t id : request.release_after()) sequences_.erase(id);
  changed_.NotifyAll();
  response->mutable_stats()->set_rows(t * kHeads);
  response->mutable_stats()->set_hits(t * kHeads);
  response->mutable_stats()->set_batch_tokens(static_cast<uint32_t>(t));
}

grpc::Status FakePleServer::Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                                    v1::ForwardResponse* out) {
  if (grpc::Status s = Note("Forward", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  Run(*request, out);
  return ToGrpc(context, out->status());
}

grpc::Status FakePleServer::ForwardStream(grpc::ServerContext* context,
                                          grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream) {
  if (grpc::Status s = Note("ForwardStream", *context); !s.ok()) return s;
  v1::ForwardRequest request;
  while (stream->Read(&request)) {
    v1::ForwardResponse response;
    {
      MutexLock lock(&mutex_);
      Run(request, &response);
    }
    if (!stream->Write(response)) break;
  }
  return grpc::Status::OK;
}

grpc::Status FakePleServer::Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                                   v1::LookupResponse* out) {
  if (grpc::Status s = Note("Lookup", *context); !s.ok()) return s;
  size_t t = 0;
  out->mutable_embeddings()->set_dtype(v1::DTYPE_BF16);
  for (const v1::LookupSegment& segment : request->segments()) {
    std::vector<uint32_t> history = {kEos, kEos};
    history.insert(history.end(), segment.context_ids().begin(), segment.context_ids().end());
    for (uint32_t i = 0; i < segment.num_tokens(); ++i, ++t) {
      const uint32_t token = request->token_ids(static_cast<int>(t));
      const size_t h = history.size();
      const std::vector<uint64_t> ids = FakeRowIds(token, history[h - 1], history[h - 2]);
      history.push_back(token);
      if (request->want_row_ids()) out->mutable_row_ids()->Add(ids.begin(), ids.end());
      if (!request->want_embeddings()) continue;
      const std::vector<uint16_t> row = FakeEmbedding(ids);
      out->mutable_embeddings()->mutable_data()->append(reinterpret_cast<const char*>(row.data()), row.size() * 2);
    }
  }
  return grpc::Status::OK;
}

grpc::Status FakePleServer::GetSequence(grpc::ServerContext* context, const v1::GetSequenceRequest* request,
                                        v1::GetSequenceResponse* out) {
  if (grpc::Status s = Note("GetSequence", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  v1::Status refused;
  Sequence* sequence = Find(request->sequence_id(), request->epoch(), &refused);
  if (sequence == nullptr) return ToGrpc(context, refused);
  out->set_epoch(sequence->epoch);
  for (const auto& [index, carry] : sequence->carries) {
    v1::SequenceLayer* layer = out->add_layers();
    layer->set_layer_index(index);
    layer->set_position(carry.position);
    layer->set_low(carry.low);
    layer->set_last_step_start(carry.last_step_start);
  }
  return grpc::Status::OK;
}

grpc::Status FakePleServer::Snapshot(grpc::ServerContext* context, const v1::SnapshotRequest* request,
                                     v1::SnapshotResponse* out) {
  if (grpc::Status s = Note("Snapshot", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  v1::Status refused;
  Sequence* sequence = Find(request->sequence_id(), request->epoch(), &refused);
  if (sequence == nullptr) return ToGrpc(context, refused);
  out->set_model_id(model_id_);
  for (const auto& [index, carry] : sequence->carries) {
    if (request->has_layer_index() && request->layer_index() != index) continue;
    v1::LayerAux* layer = out->add_layers();
    layer->set_layer_index(index);
    layer->set_position(carry.position);
    layer->set_aux(carry.Aux(options_.channels));
  }
  return grpc::Status::OK;
}

grpc::Status FakePleServer::Restore(grpc::ServerContext* context, const v1::RestoreRequest* request,
                                    v1::RestoreResponse*) {
  if (grpc::Status s = Note("Restore", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  v1::Status refused;
  Sequence* sequence = Find(request->sequence_id(), request->epoch(), &refused);
  if (sequence == nullptr) return ToGrpc(context, refused);
  for (const v1::LayerAux& layer : request->layers()) {
    if (!Load(layer, sequence)) {
      return ToGrpc(context, Refused(grpc::INVALID_ARGUMENT, "bad aux", v1::REASON_AUX_MALFORMED));
    }
  }
  return grpc::Status::OK;
}

grpc::Status FakePleServer::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* out) {
  if (grpc::Status s = Note("Release", *context); !s.ok()) return s;
  MutexLock lock(&mutex_);
  out->set_released(sequences_.erase(request->sequence_id()) > 0);
  changed_.NotifyAll();
  return grpc::Status::OK;
}

}  // namespace pleiad::client::testing
