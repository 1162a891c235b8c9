#include "tests/core/device/stage_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/oracle/numbers.h"
#include "tests/support/test_device.h"

namespace pleiad {
namespace {

void PutValue(DType dtype, double value, std::byte* to) {
  if (dtype == DType::kBf16) {
    const uint16_t bits = oracle::Bf16Bits(oracle::RoundToBf16(static_cast<float>(value)));
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    const float number = static_cast<float>(value);
    std::memcpy(to, &number, sizeof(number));
  }
}

float GetValue(DType dtype, const std::byte* from) {
  if (dtype == DType::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return static_cast<float>(oracle::Bf16Value(bits));
  }
  float number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

}  // namespace

oracle::Model MakeModel(const SmallModel& small, uint64_t seed) {
  oracle::HashConfig hash;
  hash.ngram_size = small.ngram;
  hash.heads_per_ngram = small.heads_per_ngram;
  oracle::Shape shape;
  shape.hidden = small.hidden;
  shape.hc = small.hc;
  shape.embed = small.embed;
  shape.kernel = small.kernel;
  return oracle::RandomModel(hash, shape, seed);
}

Geometry GeometryOf(const oracle::Model& model) {
  Geometry geometry;
  geometry.hidden_size = static_cast<uint32_t>(model.shape.hidden);
  geometry.hc_count = static_cast<uint32_t>(model.shape.hc);
  geometry.embed_dim = static_cast<uint32_t>(model.shape.embed);
  geometry.conv_kernel_size = static_cast<uint32_t>(model.shape.kernel);
  geometry.ngram_size = static_cast<uint32_t>(model.hash.ngram_size);
  geometry.heads_per_ngram = static_cast<uint32_t>(model.hash.heads_per_ngram);
  geometry.rms_norm_eps = static_cast<float>(model.shape.eps);
  return geometry;
}

LayerWeights WeightsOf(const oracle::Model& model) {
  LayerWeights weights;
  weights.key_value = model.weights.key;
  weights.key_value.insert(weights.key_value.end(), model.weights.value.begin(), model.weights.value.end());
  weights.norm_key = model.weights.norm_key;
  weights.norm_query = model.weights.norm_query;
  weights.norm_conv = model.weights.norm_conv;
  weights.conv = model.weights.conv;
  return weights;
}

RingView Back(RingView ring, uint32_t tokens, uint32_t ring_rows) {
  ring.cursor = (ring.cursor + ring_rows - tokens) % ring_rows;
  ring.valid -= std::min(tokens, ring.valid);
  return ring;
}

StageRig::StageRig(const oracle::Model& model, std::vector<double> embeddings, std::vector<double> highway,
                   DeviceOptions options, testing::TestDevice which)
    : model_(model), embeddings_(std::move(embeddings)), highway_(std::move(highway)), options_(std::move(options)) {
  options_.geometry = GeometryOf(model);
  tokens_ = static_cast<uint32_t>(embeddings_.size() / model.shape.embed);
  options_.arena_slots += rows();
  if (options_.carries == 0) options_.carries = 4;
  if (options_.max_tokens == DeviceOptions{}.max_tokens) options_.max_tokens = 2 * tokens_;
  ring_rows_ = state_len() + options_.rollback_tokens;
  auto device = testing::CreateTestDevice(options_, {WeightsOf(model)}, which);
  EXPECT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
  row_bytes_.resize(embeddings_.size() * sizeof(uint16_t));
  for (size_t i = 0; i < embeddings_.size(); ++i) PutValue(DType::kBf16, embeddings_[i], &row_bytes_[2 * i]);
  EXPECT_TRUE(device_->WriteArena(Slot(0), row_bytes_).ok());
}

absl::Span<const std::byte> StageRig::Row(uint32_t row) const {
  const size_t bytes = row_bytes_.size() / rows();
  return absl::MakeConstSpan(row_bytes_).subspan(row * bytes, bytes);
}

RigCarry StageRig::NewCarry() {
  EXPECT_LT(next_carry_, options_.carries);
  RigCarry carry;
  carry.slot = CarrySlot(next_carry_++);
  return carry;
}

SegmentPlan StageRig::Segment(const RigStep& step, uint32_t first_token) {
  SegmentPlan segment;
  segment.first_token = first_token;
  segment.num_tokens = step.count;
  if (step.carry == nullptr) return segment;
  RigCarry& carry = *step.carry;
  segment.carry = carry.slot;
  segment.ring = step.start == StartAt::kLastStart ? carry.start : Back(carry.ring, step.back, ring_rows_);
  segment.undo_to_ring = step.start == StartAt::kLastStart && carry.start_in_undo;
  segment.ring_to_undo = step.count > options_.rollback_tokens;
  carry.start = segment.ring;
  carry.start_in_undo = segment.ring_to_undo;
  if (segment.ring_to_undo) carry.start.valid = std::min(carry.start.valid, state_len());
  carry.ring.cursor = (segment.ring.cursor + step.count) % ring_rows_;
  carry.ring.valid = std::min(segment.ring.valid + step.count, ring_rows_);
  return segment;
}

namespace {

// Moves bytes [skip, size) of `input` apart, each piece before a byte that is none of the tensor's.
std::vector<TensorPiece> TakeApart(std::vector<std::byte>& input, uint32_t skip, uint32_t piece_bytes) {
  const std::vector<std::byte> whole(input.begin() + skip, input.end());
  const size_t count = (whole.size() + piece_bytes - 1) / piece_bytes;
  input.assign(skip + whole.size() + count, std::byte{0xFF});
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * piece_bytes;
    const size_t bytes = std::min<size_t>(piece_bytes, whole.size() - at);
    std::byte* to = input.data() + skip + at + i;
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(at), bytes, to);
    pieces.push_back({to, at, bytes});
  }
  return pieces;
}

}  // namespace

RigBatch StageRig::Make(const std::vector<RigStep>& steps, const RigFormat& format) {
  RigBatch batch;
  batch.format = format;
  BatchPlan& plan = batch.plan;
  const size_t in_size = ByteSize(format.input);
  const size_t out_size = ByteSize(format.output);
  batch.inputs.resize(steps.size());
  batch.outputs.resize(steps.size());
  batch.pieces.resize(steps.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    const RigStep& step = steps[s];
    plan.segments.push_back(Segment(step, plan.num_tokens));
    for (uint32_t t = step.first; t < step.first + step.count; ++t) {
      for (uint32_t h = 0; h < model_.heads(); ++h) {
        plan.gather.push_back(GatherIndex::OfSlot(Slot(static_cast<uint32_t>(t * model_.heads() + h))));
      }
    }
    const size_t values = step.count * channels();
    std::vector<std::byte>& input = batch.inputs[s];
    std::vector<std::byte>& output = batch.outputs[s];
    input.assign(values * in_size + format.misalign, std::byte{0xFF});
    output.assign(values * out_size + format.misalign, std::byte{0xFF});
    for (size_t i = 0; i < values; ++i) {
      PutValue(format.input, highway_[step.first * channels() + i], &input[format.misalign + i * in_size]);
    }
    TensorPart part;
    part.first_token = plan.num_tokens;
    part.num_tokens = step.count;
    if (format.piece_bytes != 0 && !format.zeros) {
      batch.pieces[s] = TakeApart(input, format.misalign, format.piece_bytes);
      part.input_pieces = batch.pieces[s];
    } else if (!format.zeros) {
      part.input = input.data() + format.misalign;
    }
    part.output = (format.in_place ? input : output).data() + format.misalign;
    part.input_dtype = format.input;
    part.output_dtype = format.output;
    part.kind = format.kind;
    plan.parts.push_back(part);
    plan.num_tokens += step.count;
  }
  return batch;
}

Ticket StageRig::Start(const RigBatch& batch) {
  const absl::StatusOr<Ticket> ticket = device_->Run(batch.plan);
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  return *ticket;
}

std::vector<std::vector<float>> StageRig::Finish(Ticket ticket, const RigBatch& batch) {
  const absl::Status done = device_->Wait(ticket);
  EXPECT_TRUE(done.ok()) << done;
  const RigFormat& format = batch.format;
  std::vector<std::vector<float>> results;
  for (const auto& bytes : format.in_place ? batch.inputs : batch.outputs) {
    std::vector<float>& result = results.emplace_back();
    for (size_t at = format.misalign; at < bytes.size(); at += ByteSize(format.output)) {
      result.push_back(GetValue(format.output, &bytes[at]));
    }
  }
  return results;
}

std::vector<std::vector<float>> StageRig::Run(const std::vector<RigStep>& steps, const RigFormat& format) {
  const RigBatch batch = Make(steps, format);
  return Finish(Start(batch), batch);
}

std::vector<float> StageRig::RunCut(RigCarry* carry, uint32_t first, const std::vector<uint32_t>& lengths) {
  std::vector<float> out;
  for (uint32_t length : lengths) {
    const std::vector<float> part = RunOne({.carry = carry, .first = first, .count = length});
    out.insert(out.end(), part.begin(), part.end());
    first += length;
  }
  return out;
}

std::vector<float> StageRig::ReadRows(const RigCarry& carry) {
  std::vector<float> rows(state_len() * channels(), std::numeric_limits<float>::quiet_NaN());
  const auto ticket = device_->ReadCarry({carry.slot, carry.ring, rows.data()});
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(device_->Wait(*ticket).ok());
  return rows;
}

void StageRig::WriteRows(RigCarry* carry, const std::vector<float>& rows) {
  const auto ticket = device_->WriteCarry({carry->slot, rows.data()});
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(device_->Wait(*ticket).ok());
  carry->ring = RingView{ring_rows_ == 0 ? 0 : state_len() % ring_rows_, state_len()};
}

void StageRig::Poison(CarrySlot slot) {
  // Rows of NaN are moved to every place: on through the ring by empty undo moves, and aside by a long step.
  const std::vector<float> rows(state_len() * channels(), std::numeric_limits<float>::quiet_NaN());
  RigCarry carry;
  carry.slot = slot;
  WriteRows(&carry, rows);
  RunOne({.carry = &carry, .first = 0, .count = std::min(tokens_, options_.rollback_tokens + 1)});
  for (uint32_t cursor = 0; cursor < ring_rows_; ++cursor) {
    BatchPlan plan;
    SegmentPlan segment;
    segment.carry = slot;
    segment.ring = {cursor, state_len()};
    segment.undo_to_ring = true;
    plan.segments = {segment};
    const auto ticket = device_->Run(plan);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(device_->Wait(*ticket).ok());
  }
}

oracle::Trace StageRig::Oracle(uint32_t first, uint32_t count, oracle::KvRounding rounding) const {
  return oracle::RunEmbeddings(model_, Rows(embeddings_, model_.shape.embed, first, count),
                               Rows(highway_, channels(), first, count), rounding);
}

StageRig RandomRig(const oracle::Model& model, uint32_t count, uint64_t seed, DeviceOptions options,
                   testing::TestDevice which) {
  std::vector<double> embeddings = oracle::RandomValues(count * model.shape.embed, 1.0, seed);
  for (double& value : embeddings) value = oracle::RoundToBf16(value);
  return StageRig(model, std::move(embeddings), oracle::RandomValues(count * model.shape.channels(), 1.0, seed + 1),
                  std::move(options), which);
}

std::vector<double> Rows(const std::vector<double>& values, size_t width, size_t first, size_t count) {
  const auto begin = values.begin() + static_cast<ptrdiff_t>(first * width);
  return {begin, begin + static_cast<ptrdiff_t>(count * width)};
}

std::vector<float> Concat(const std::vector<std::vector<float>>& parts) {
  std::vector<float> whole;
  for (const auto& part : parts) whole.insert(whole.end(), part.begin(), part.end());
  return whole;
}

}  // namespace pleiad
