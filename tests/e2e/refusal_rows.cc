#include "tests/e2e/refusal_rows.h"

#include <cstring>
#include <limits>
#include <utility>

namespace pleiad::testing {
namespace {

constexpr int kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr int kNotFound = grpc::StatusCode::NOT_FOUND;
constexpr int kPrecondition = grpc::StatusCode::FAILED_PRECONDITION;
constexpr int kAborted = grpc::StatusCode::ABORTED;
constexpr int kExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;

// `count` tokens of value 11 for `sequence` at layer 1, with a highway of ones.
v1::ForwardRequest Step(const Cast& cast, uint64_t sequence, uint32_t count,
                        std::optional<uint64_t> position = std::nullopt, uint32_t layer = 1) {
  v1::ForwardRequest request;
  request.set_layer_index(layer);
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(sequence);
  segment->set_num_tokens(count);
  if (position) segment->set_position(*position);
  for (uint32_t i = 0; i < count; ++i) request.add_token_ids(11);
  if (count > 0) {
    const std::vector<float> ones(size_t{count} * cast.model->channels, 1.0f);
    request.mutable_highway()->set_dtype(v1::DTYPE_F32);
    request.mutable_highway()->set_data(ones.data(), ones.size() * sizeof(float));
  }
  return request;
}

// One more segment of one token.
void AddSegment(v1::ForwardRequest* request, uint64_t sequence, std::optional<uint64_t> position = std::nullopt) {
  const std::string& data = request->highway().data();
  const std::string row = data.substr(0, data.size() / static_cast<size_t>(request->token_ids_size()));
  v1::Segment* segment = request->add_segments();
  segment->set_sequence_id(sequence);
  segment->set_num_tokens(1);
  if (position) segment->set_position(*position);
  request->add_token_ids(11);
  request->mutable_highway()->mutable_data()->append(row);
}

v1::ForwardRequest Prestage(const Cast& cast, uint64_t sequence, uint32_t count,
                            std::optional<uint64_t> position = std::nullopt) {
  v1::ForwardRequest request = Step(cast, sequence, count, position);
  request.set_mode(v1::MODE_PRESTAGE);
  request.clear_highway();
  return request;
}

template <typename Request>
Request Named(uint64_t sequence, uint64_t epoch = 0) {
  Request request;
  request.set_sequence_id(sequence);
  request.set_epoch(epoch);
  return request;
}

Reply Get(const Cast& cast, uint64_t sequence, uint64_t epoch = 0) {
  v1::GetSequenceResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::GetSequence, Named<v1::GetSequenceRequest>(sequence, epoch), &response);
}
Reply Snapshot(const Cast& cast, uint64_t sequence, uint64_t epoch = 0, std::optional<uint32_t> layer = std::nullopt) {
  v1::SnapshotRequest request = Named<v1::SnapshotRequest>(sequence, epoch);
  if (layer) request.set_layer_index(*layer);
  v1::SnapshotResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::Snapshot, request, &response);
}
Reply Release(const Cast& cast, uint64_t sequence, uint64_t epoch = 0) {
  v1::ReleaseResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::Release, Named<v1::ReleaseRequest>(sequence, epoch), &response);
}

// A good blob of layer 1: history 1 2, conv rows of zeros.
v1::LayerAux Blob(const Cast& cast, uint32_t layer) {
  v1::LayerAux aux;
  aux.set_layer_index(layer);
  aux.set_position(30);
  aux.mutable_aux()->assign(cast.model->layers[0].aux_bytes, '\0');
  const uint32_t head[] = {2, 1, 2};
  std::memcpy(aux.mutable_aux()->data(), head, sizeof(head));
  return aux;
}

// Restores `level` with a good blob of layer 1 and one of layer 3 that `spoil` changed.
Reply Restore(const Cast& cast, const std::function<void(v1::LayerAux*)>& spoil) {
  v1::RestoreRequest request = Named<v1::RestoreRequest>(cast.level);
  *request.add_layers() = Blob(cast, 1);
  *request.add_layers() = Blob(cast, 3);
  spoil(request.mutable_layers(1));
  v1::RestoreResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::Restore, request, &response);
}

Reply Open(const Cast& cast, const std::function<void(v1::OpenSequenceRequest*)>& change) {
  v1::OpenSequenceRequest request;
  change(&request);
  v1::OpenSequenceResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::OpenSequence, request, &response);
}

Reply Lookup(const Cast& cast, uint32_t context, uint32_t token) {
  v1::LookupRequest request;
  request.set_layer_index(1);
  request.add_segments()->set_num_tokens(1);
  request.mutable_segments(0)->add_context_ids(context);
  request.add_token_ids(token);
  request.set_want_row_ids(true);
  v1::LookupResponse response;
  return CallOf(*cast.stub, &v1::Ple::Stub::Lookup, request, &response);
}

using StepMaker = std::function<v1::ForwardRequest(const Cast&)>;
using Call = std::function<Reply(const Cast&)>;

Refusal OfStep(std::string name, int code, v1::Reason reason, std::string field, std::string value, std::string limit,
               std::optional<uint32_t> segment, StepMaker step, int details = 1) {
  return {std::move(name),  std::move(step),  nullptr,          code,    reason,
          std::move(field), std::move(value), std::move(limit), segment, details};
}
Refusal OfCall(std::string name, int code, v1::Reason reason, std::string field, std::string value, std::string limit,
               Call call) {
  return {std::move(name),  nullptr,          std::move(call),  code,         reason,
          std::move(field), std::move(value), std::move(limit), std::nullopt, 1};
}
// A step of one token of `level` at layer 1 that `change` spoils.
Refusal Spoiled(std::string name, v1::Reason reason, std::string field, std::string value, std::string limit,
                std::function<void(v1::ForwardRequest*)> change, std::optional<uint32_t> segment = std::nullopt) {
  return OfStep(std::move(name), kInvalid, reason, std::move(field), std::move(value), std::move(limit), segment,
                [change = std::move(change)](const Cast& cast) {
                  v1::ForwardRequest request = Step(cast, cast.level, 1);
                  change(&request);
                  return request;
                });
}
Refusal OfRestore(std::string name, v1::Reason reason, std::string field, std::string value, std::string limit,
                  std::function<void(v1::LayerAux*)> spoil) {
  return OfCall(std::move(name), kInvalid, reason, std::move(field), std::move(value), std::move(limit),
                [spoil = std::move(spoil)](const Cast& cast) { return Restore(cast, spoil); });
}

void AddRulesOfCarries(std::vector<Refusal>& rows) {
  rows.push_back(OfStep("R1_DuplicateSequence", kInvalid, v1::REASON_DUPLICATE_SEQUENCE, "sequence_id", "", "once", 1,
                        [](const Cast& cast) {
                          v1::ForwardRequest request = Step(cast, cast.level, 1);
                          AddSegment(&request, cast.level);
                          return request;
                        }));
  rows.push_back(OfStep(
      "R1_EveryBadSegmentIsListedAndTheGoodOneStays", kNotFound, v1::REASON_SEQUENCE_UNKNOWN, "sequence_id", "",
      "unknown", 1,
      [](const Cast& cast) {
        v1::ForwardRequest request = Step(cast, cast.level, 1, 3);
        AddSegment(&request, cast.released);
        AddSegment(&request, cast.apart, 100);
        return request;
      },
      2));
  rows.push_back(OfStep("R2_ReleaseAfterInAPrestage", kInvalid, v1::REASON_INVALID_FIELD, "release_after", "",
                        "prestage", std::nullopt, [](const Cast& cast) {
                          v1::ForwardRequest request = Prestage(cast, cast.level, 1);
                          request.add_release_after(cast.apart);
                          return request;
                        }));
  rows.push_back(OfStep("R2_ReleaseAfterOfARefusedStep", kPrecondition, v1::REASON_POSITION_UNREACHABLE, "position",
                        "100", "reachable", 0, [](const Cast& cast) {
                          v1::ForwardRequest request = Step(cast, cast.apart, 1, 100);
                          request.add_release_after(cast.apart);
                          request.add_release_after(cast.level);
                          return request;
                        }));
  const auto unreachable = [&rows](std::string name, uint64_t position, uint32_t count, uint32_t layer,
                                   std::string limit) {
    rows.push_back(OfStep("R3_" + std::move(name), kPrecondition, v1::REASON_POSITION_UNREACHABLE, "position",
                          std::to_string(position), std::move(limit), 0,
                          [=](const Cast& cast) { return Step(cast, cast.apart, count, position, layer); }));
  };
  unreachable("BeyondTheEnd", 18, 1, 1, "9 to 17");
  unreachable("BelowLow", 8, 1, 1, "9 to 17");
  unreachable("BetweenTheLastStartAndLow", 5, 1, 3, "12 to 20");
  unreachable("APureMove", 100, 0, 1, "9 to 17");
  unreachable("BeyondAnyPosition", std::numeric_limits<uint64_t>::max(), 1, 1, "9 to 17");
  rows.push_back(OfStep("R3_PredecessorFailed", kPrecondition, v1::REASON_PREDECESSOR_FAILED, "position", "absent",
                        "fresh", 0, [](const Cast& cast) { return Step(cast, cast.failed, 1); }));
  rows.push_back(
      OfStep("R4_StepOfAnOldEpoch", kAborted, v1::REASON_EPOCH_OLD, "epoch", "4", "epoch 5", 0, [](const Cast& cast) {
        v1::ForwardRequest request = Step(cast, cast.apart, 1, 17);
        request.set_epoch(4);
        return request;
      }));
  const auto old = [&rows](std::string name, Call call) {
    rows.push_back(OfCall("R4_" + std::move(name) + "OfAnOldEpoch", kAborted, v1::REASON_EPOCH_OLD, "epoch", "4",
                          "epoch 5", std::move(call)));
  };
  old("GetSequence", [](const Cast& cast) { return Get(cast, cast.apart, 4); });
  old("Snapshot", [](const Cast& cast) { return Snapshot(cast, cast.apart, 4, 1); });
  old("Release", [](const Cast& cast) { return Release(cast, cast.apart, 4); });
  old("Restore", [](const Cast& cast) {
    v1::RestoreRequest request = Named<v1::RestoreRequest>(cast.apart, 4);
    *request.add_layers() = Blob(cast, 1);
    v1::RestoreResponse response;
    return CallOf(*cast.stub, &v1::Ple::Stub::Restore, request, &response);
  });
  rows.push_back(Spoiled(
      "R5_FreshWithAPosition", v1::REASON_INVALID_FIELD, "position", "3", "fresh",
      [](v1::ForwardRequest* request) {
        request->mutable_segments(0)->set_fresh(true);
        request->mutable_segments(0)->set_position(3);
      },
      0));
  rows.push_back(Spoiled("R6_PrestageWithATensor", v1::REASON_INVALID_FIELD, "highway", "present", "no tensor",
                         [](v1::ForwardRequest* request) { request->set_mode(v1::MODE_PRESTAGE); }));
  rows.push_back(OfStep("R6_PrestageOfTooManyTokens", kInvalid, v1::REASON_TOO_MANY_TOKENS, "token_ids", "65",
                        "--max-tokens", std::nullopt,
                        [](const Cast& cast) { return Prestage(cast, cast.level, kRefusalMaxTokens + 1); }));
  rows.push_back(OfStep("R6_PrestageOfAnUnreachablePosition", kPrecondition, v1::REASON_POSITION_UNREACHABLE,
                        "position", "100", "9 to 17", 0,
                        [](const Cast& cast) { return Prestage(cast, cast.apart, 1, 100); }));
}

void AddRulesOfRequests(std::vector<Refusal>& rows) {
  for (const uint32_t token : {1000u, std::numeric_limits<uint32_t>::max()}) {
    rows.push_back(OfStep("R7_Token" + std::to_string(token), kInvalid, v1::REASON_TOKEN_OUT_OF_VOCABULARY,
                          "token_ids[2]", std::to_string(token), "image_token_id", 0, [=](const Cast& cast) {
                            v1::ForwardRequest request = Step(cast, cast.level, 4);
                            request.set_token_ids(2, token);
                            return request;
                          }));
  }
  rows.push_back(OfStep("R8_TooManyTokens", kInvalid, v1::REASON_TOO_MANY_TOKENS, "token_ids", "65", "bytes",
                        std::nullopt, [](const Cast& cast) { return Step(cast, cast.level, kRefusalMaxTokens + 1); }));
  const auto sizes = [&rows](std::string name, std::function<void(v1::ForwardRequest*)> change) {
    rows.push_back(Spoiled("R8_Tensor" + std::move(name), v1::REASON_SIZE_MISMATCH, "highway.data", "bytes", "must be",
                           std::move(change)));
  };
  sizes("OneByteShort", [](v1::ForwardRequest* request) { request->mutable_highway()->mutable_data()->pop_back(); });
  sizes("OneValueLong",
        [](v1::ForwardRequest* request) { request->mutable_highway()->mutable_data()->append(4, 'x'); });
  sizes("Empty", [](v1::ForwardRequest* request) {
    request->mutable_highway()->clear_data();
    request->mutable_highway()->set_data("");
  });
  sizes("OfAnotherType", [](v1::ForwardRequest* request) { request->mutable_highway()->set_dtype(v1::DTYPE_BF16); });
  sizes("WithoutTokens", [](v1::ForwardRequest* request) {
    request->clear_token_ids();
    request->mutable_segments(0)->set_num_tokens(0);
  });
  rows.push_back(Spoiled("R8_IdsThatAreNotTheSumOfTokens", v1::REASON_SIZE_MISMATCH, "token_ids", "2", "num_tokens, 1",
                         [](v1::ForwardRequest* request) { request->add_token_ids(11); }));
  rows.push_back(Spoiled("R8_NoTensor", v1::REASON_INVALID_FIELD, "highway", "absent", "needs a tensor",
                         [](v1::ForwardRequest* request) { request->clear_highway(); }));
  rows.push_back(Spoiled("R8_NoDtype", v1::REASON_INVALID_FIELD, "highway.dtype", "UNSPECIFIED", "DTYPE_F32",
                         [](v1::ForwardRequest* request) { request->mutable_highway()->clear_dtype(); }));
  rows.push_back(OfStep("R8_MessageOverTheLimit", kInvalid, v1::REASON_SIZE_MISMATCH, "request", "bytes",
                        "max_message_bytes", std::nullopt, [](const Cast& cast) {
                          v1::ForwardRequest request = Step(cast, cast.level, 1);
                          request.mutable_highway()->mutable_data()->resize(cast.model->max_message_bytes);
                          return request;
                        }));
  const auto field = [&rows](std::string name, std::string what, std::string value, std::string limit,
                             std::function<void(v1::ForwardRequest*)> change) {
    rows.push_back(Spoiled("Enum_" + std::move(name), v1::REASON_INVALID_FIELD, std::move(what), std::move(value),
                           std::move(limit), std::move(change)));
  };
  field("Mode", "mode", "9", "MODE_FORWARD",
        [](v1::ForwardRequest* request) { request->set_mode(static_cast<v1::Mode>(9)); });
  field("OutputKind", "output.kind", "9", "OUTPUT_KIND_DELTA",
        [](v1::ForwardRequest* request) { request->mutable_output()->set_kind(static_cast<v1::OutputKind>(9)); });
  field("InputDtype", "highway.dtype", "9", "DTYPE_BF16",
        [](v1::ForwardRequest* request) { request->mutable_highway()->set_dtype(static_cast<v1::DType>(9)); });
  field("OutputDtype", "output.dtype", "9", "DTYPE_BF16",
        [](v1::ForwardRequest* request) { request->mutable_output()->set_dtype(static_cast<v1::DType>(9)); });
  rows.push_back(Spoiled("R13_InputRegion", v1::REASON_NOT_SUPPORTED, "highway.region", "", "",
                         [](v1::ForwardRequest* request) { request->mutable_highway()->mutable_region(); }));
  rows.push_back(Spoiled("R13_OutputRegion", v1::REASON_NOT_SUPPORTED, "output.region", "", "",
                         [](v1::ForwardRequest* request) { request->mutable_output()->mutable_region(); }));
  rows.push_back(Spoiled("Layer_Absent", v1::REASON_LAYER_UNKNOWN, "layer_index", "absent", "[1, 3]",
                         [](v1::ForwardRequest* request) { request->clear_layer_index(); }));
  rows.push_back(Spoiled("Layer_WithoutPle", v1::REASON_LAYER_UNKNOWN, "layer_index", "2 has no PLE",
                         "zero-based PLE layers: [1, 3] (the config lists [2, 4])",
                         [](v1::ForwardRequest* request) { request->set_layer_index(2); }));
  rows.push_back(OfStep("R9_UnknownSequence", kNotFound, v1::REASON_SEQUENCE_UNKNOWN, "sequence_id", "", "unknown", 0,
                        [](const Cast& cast) { return Step(cast, cast.released, 1); }));
  rows.push_back(OfStep("R9_ThrowAwayWithAPosition", kInvalid, v1::REASON_INVALID_FIELD, "position", "3",
                        "sequence_id 0", 1, [](const Cast& cast) {
                          v1::ForwardRequest request = Step(cast, cast.level, 1);
                          AddSegment(&request, 0, 3);
                          return request;
                        }));
}

void AddRulesOfCalls(std::vector<Refusal>& rows) {
  rows.push_back(OfCall("R7_LookupOfAToken", kInvalid, v1::REASON_TOKEN_OUT_OF_VOCABULARY, "token_ids[0]", "1000",
                        "vocab_size 1000", [](const Cast& cast) { return Lookup(cast, 1, 1000); }));
  rows.back().segment = 0;
  rows.push_back(OfCall("R7_LookupOfAContext", kInvalid, v1::REASON_TOKEN_OUT_OF_VOCABULARY, "context_ids[0]", "1000",
                        "vocab_size 1000", [](const Cast& cast) { return Lookup(cast, 1000, 1); }));
  rows.back().segment = 0;
  const auto zero = [&rows](std::string name, Call call) {
    rows.push_back(OfCall("R9_" + std::move(name) + "OfTheThrowAway", kInvalid, v1::REASON_INVALID_FIELD, "sequence_id",
                          "0", "Forward", std::move(call)));
  };
  zero("GetSequence", [](const Cast& cast) { return Get(cast, 0); });
  zero("Snapshot", [](const Cast& cast) { return Snapshot(cast, 0); });
  zero("Release", [](const Cast& cast) { return Release(cast, 0); });
  const auto unknown = [&rows](std::string name, Call call) {
    rows.push_back(OfCall("R9_" + std::move(name) + "OfAnUnknownSequence", kNotFound, v1::REASON_SEQUENCE_UNKNOWN,
                          "sequence_id", "", "unknown", std::move(call)));
  };
  unknown("GetSequence", [](const Cast& cast) { return Get(cast, cast.released); });
  unknown("Snapshot", [](const Cast& cast) { return Snapshot(cast, cast.released); });
  unknown("Restore", [](const Cast& cast) {
    v1::RestoreResponse response;
    return CallOf(*cast.stub, &v1::Ple::Stub::Restore, Named<v1::RestoreRequest>(cast.released), &response);
  });
  rows.push_back(OfCall("R10_NoFreeCarry", kExhausted, v1::REASON_CARRIES_FULL, "sequences", "4", "--max-sequences",
                        [](const Cast& cast) { return Open(cast, [](auto*) {}); }));
  rows.push_back(
      OfCall("Open_LongLabel", kInvalid, v1::REASON_INVALID_FIELD, "label", "65", "64",
             [](const Cast& cast) { return Open(cast, [](auto* r) { r->set_label(std::string(65, 'a')); }); }));
  rows.push_back(
      OfCall("Open_LongKey", kInvalid, v1::REASON_INVALID_FIELD, "client_key", "65", "64",
             [](const Cast& cast) { return Open(cast, [](auto* r) { r->set_client_key(std::string(65, 'a')); }); }));
  rows.push_back(OfCall("Snapshot_OfLayersApart", kPrecondition, v1::REASON_LAYERS_APART, "layer_index", "", "",
                        [](const Cast& cast) { return Snapshot(cast, cast.apart); }));
  rows.push_back(OfCall("Snapshot_OfALayerWithoutPle", kInvalid, v1::REASON_LAYER_UNKNOWN, "layer_index", "2", "[1, 3]",
                        [](const Cast& cast) { return Snapshot(cast, cast.apart, 0, 2); }));
  const auto malformed = [&rows](std::string name, std::string field, std::string limit,
                                 std::function<void(v1::LayerAux*)> spoil) {
    rows.push_back(OfRestore("Blob_" + std::move(name), v1::REASON_AUX_MALFORMED, std::move(field), "",
                             std::move(limit), std::move(spoil)));
  };
  malformed("Short", "layers[1].aux", "", [](v1::LayerAux* aux) { aux->mutable_aux()->pop_back(); });
  malformed("Long", "layers[1].aux", "", [](v1::LayerAux* aux) { aux->mutable_aux()->push_back('x'); });
  malformed("Empty", "layers[1].aux", "", [](v1::LayerAux* aux) { aux->clear_aux(); });
  malformed("HistoryLength", "layers[1].aux", "", [](v1::LayerAux* aux) { (*aux->mutable_aux())[0] = 1; });
  malformed("IdOutOfVocabulary", "layers[1].aux", "", [](v1::LayerAux* aux) { (*aux->mutable_aux())[6] = 1; });
  malformed("Crc", "layers[1].crc32", "the bytes give", [](v1::LayerAux* aux) { aux->set_crc32(7); });
  malformed("Position", "layers[1].position", "2^62", [](v1::LayerAux* aux) { aux->set_position((1ull << 62) + 1); });
  malformed("FreshWithAPosition", "layers[1].position", "hist_len 0", [](v1::LayerAux* aux) {
    (*aux->mutable_aux())[0] = 0;
    aux->mutable_aux()->erase(4, 8);  // its two ids
  });
  rows.push_back(OfRestore("Blob_OfALayerWithoutPle", v1::REASON_LAYER_UNKNOWN, "layer_index", "2", "[1, 3]",
                           [](v1::LayerAux* aux) { aux->set_layer_index(2); }));
  rows.push_back(OfRestore("Blob_OfALayerNamedTwice", v1::REASON_INVALID_FIELD, "layers[1].layer_index", "1", "before",
                           [](v1::LayerAux* aux) { aux->set_layer_index(1); }));
  rows.push_back(OfCall("Blob_OfAnotherModel", kInvalid, v1::REASON_MODEL_MISMATCH, "model_id", "other", "this server",
                        [](const Cast& cast) {
                          v1::RestoreRequest request = Named<v1::RestoreRequest>(cast.level);
                          request.set_model_id("other");
                          *request.add_layers() = Blob(cast, 1);
                          v1::RestoreResponse response;
                          return CallOf(*cast.stub, &v1::Ple::Stub::Restore, request, &response);
                        }));
}

}  // namespace

std::vector<Refusal> RefusalRows() {
  std::vector<Refusal> rows;
  AddRulesOfCarries(rows);
  AddRulesOfRequests(rows);
  AddRulesOfCalls(rows);
  return rows;
}

Reply OnStream(v1::Ple::Stub& stub, const v1::ForwardRequest& request) {
  grpc::ClientContext context;
  const auto stream = stub.ForwardStream(&context);
  Reply reply;
  v1::ForwardResponse response;
  if (stream->Write(request) && stream->Read(&response)) {
    reply.code = response.status().code();
    reply.status = response.status();
  }
  stream->WritesDone();
  if (!stream->Finish().ok()) reply.code = -1;
  return reply;
}

}  // namespace pleiad::testing
