#include "tests/e2e/sessions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad::testing {
namespace {

absl::Span<const std::byte> Bytes(const std::vector<float>& values, uint64_t first, uint64_t count) {
  return {reinterpret_cast<const std::byte*>(values.data() + first), count * sizeof(float)};
}

}  // namespace

void Passage::Append(const Passage& more) {
  tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
  highway.insert(highway.end(), more.highway.begin(), more.highway.end());
  channels = more.channels;
}

Passage Passage::Slice(uint32_t first, uint32_t count) const {
  Passage slice;
  slice.channels = channels;
  slice.tokens.assign(tokens.begin() + first, tokens.begin() + first + count);
  slice.highway.assign(highway.begin() + static_cast<ptrdiff_t>(uint64_t{first} * channels),
                       highway.begin() + static_cast<ptrdiff_t>(uint64_t{first + count} * channels));
  return slice;
}

Passage RandomPassage(std::mt19937& random, uint32_t count, const client::ModelInfo& model) {
  Passage passage;
  passage.channels = model.channels;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t kind = random() % 8;
    passage.tokens.push_back(kind == 0  ? model.eos_token_id
                             : kind < 4 ? static_cast<uint32_t>(random() % 5)
                                        : static_cast<uint32_t>(random() % model.vocab_size));
  }
  std::normal_distribution<float> normal;
  for (uint64_t i = 0; i < uint64_t{count} * model.channels; ++i) passage.highway.push_back(normal(random));
  return passage;
}

client::Step StepOf(const client::Sequence& sequence, const Passage& passage, uint32_t first, uint32_t count,
                    std::optional<uint64_t> position, std::optional<uint32_t> layer_index) {
  client::Step step;
  step.layer_index = layer_index;
  step.segments.push_back({&sequence, count, /*fresh=*/false, position});
  step.token_ids.assign(passage.tokens.begin() + first, passage.tokens.begin() + first + count);
  step.highway.data = Bytes(passage.highway, uint64_t{first} * passage.channels, uint64_t{count} * passage.channels);
  step.output_kind = client::OutputKind::kDelta;
  return step;
}

client::Step MoveOf(const client::Sequence& sequence, uint64_t position, std::optional<uint32_t> layer_index) {
  client::Step step;
  step.layer_index = layer_index;
  step.segments.push_back({&sequence, 0, /*fresh=*/false, position});
  return step;
}

std::string RunPassage(client::StepStream& stream, const client::Sequence& sequence, const Passage& passage,
                       const std::vector<uint32_t>& lengths, std::optional<uint32_t> layer_index) {
  std::vector<std::future<absl::StatusOr<client::StepResult>>> answers;
  for (uint32_t first = 0, i = 0; first < passage.size(); ++i) {
    uint32_t count = passage.size() - first;
    if (!lengths.empty()) count = std::min(count, lengths[std::min<size_t>(i, lengths.size() - 1)]);
    answers.push_back(stream.Submit(StepOf(sequence, passage, first, count, std::nullopt, layer_index)));
    first += count;
  }
  std::string outputs;
  for (auto& answer : answers) {
    const absl::StatusOr<client::StepResult> result = answer.get();
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) outputs += result->output;
  }
  return outputs;
}

std::vector<float> ToFloats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

v1::ForwardRequest RequestOf(uint64_t sequence, const Passage& passage, std::optional<uint64_t> position,
                             std::optional<uint32_t> layer_index) {
  v1::ForwardRequest request;
  if (layer_index) request.set_layer_index(*layer_index);
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(sequence);
  segment->set_num_tokens(passage.size());
  if (position) segment->set_position(*position);
  request.mutable_token_ids()->Add(passage.tokens.begin(), passage.tokens.end());
  request.mutable_output()->set_kind(v1::OUTPUT_KIND_DELTA);
  if (passage.size() > 0) {
    request.mutable_highway()->set_dtype(v1::DTYPE_F32);
    request.mutable_highway()->set_data(passage.highway.data(), passage.highway.size() * sizeof(float));
  }
  return request;
}

std::string VisibleState(v1::Ple::Stub& stub, uint64_t sequence) {
  std::string text;
  v1::GetSequenceRequest get;
  get.set_sequence_id(sequence);
  v1::GetSequenceResponse stands;
  {
    grpc::ClientContext context;
    const grpc::Status status = stub.GetSequence(&context, get, &stands);
    if (!status.ok()) return absl::StrCat("GetSequence ", static_cast<int>(status.error_code()));
  }
  for (const v1::SequenceLayer& layer : stands.layers()) {
    absl::StrAppend(&text, layer.ShortDebugString(), "\n");
    v1::SnapshotRequest request;
    request.set_sequence_id(sequence);
    request.set_layer_index(layer.layer_index());
    v1::SnapshotResponse snapshot;
    grpc::ClientContext context;
    const grpc::Status status = stub.Snapshot(&context, request, &snapshot);
    if (!status.ok()) return absl::StrCat("Snapshot ", static_cast<int>(status.error_code()));
    for (const v1::LayerAux& aux : snapshot.layers()) {
      absl::StrAppend(&text, aux.layer_index(), " at ", aux.position(), ": ", aux.aux().size(), " bytes, hash ",
                      std::hash<std::string>()(aux.aux()), "\n");
    }
  }
  return text;
}

CheckpointSpec TwoLayerSpec() {
  CheckpointSpec spec;
  spec.ple_layer_ids = {2, 4};
  return spec;
}

}  // namespace pleiad::testing
