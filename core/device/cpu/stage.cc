#include "core/device/cpu/stage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace pleiad {

Stage::Stage(const DeviceOptions& options, Isa isa, std::vector<LayerConstants> layers, ThreadPool& pool)
    : geometry_(options.geometry),
      rollback_tokens_(options.rollback_tokens),
      hidden_(options.geometry.hidden_size),
      channels_(options.geometry.channels()),
      kv_width_(channels_ + hidden_),
      kernels_(KernelsFor(isa)),
      layers_(std::move(layers)),
      pool_(pool) {}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(const DeviceOptions& options, Isa isa,
                                                     std::vector<LayerConstants> layers, ThreadPool& pool) {
  std::unique_ptr<Stage> stage(new Stage(options, isa, std::move(layers), pool));
  const Geometry& geometry = options.geometry;
  const uint64_t tokens = options.max_tokens;
  PLEIAD_ASSIGN_OR_RETURN(HostMemory carries,
                          HostMemory::Allocate("carry pool",
                                               CarryPool::Bytes(options.carries, geometry.state_len(),
                                                                options.rollback_tokens, stage->channels_),
                                               HugePages::kNo));
  stage->carries_ = CarryPool(std::move(carries), geometry.state_len(), options.rollback_tokens, stage->channels_);
  PLEIAD_ASSIGN_OR_RETURN(
      stage->projection_,
      Projection::Create(stage->kv_width_, geometry.embed_dim, isa,
                         options.batch_invariant ? SumOrder::kInvariant : SumOrder::kFastest, pool));
  PLEIAD_ASSIGN_OR_RETURN(
      stage->embeddings_,
      HostMemory::Allocate("scratch of embeddings",
                           (tokens + PanelGemm::kPadTokens) * geometry.embed_dim * sizeof(Bf16), HugePages::kNo));
  PLEIAD_ASSIGN_OR_RETURN(
      stage->key_value_,
      HostMemory::Allocate("scratch of keys and values", tokens * stage->kv_width_ * sizeof(Bf16), HugePages::kNo));
  PLEIAD_ASSIGN_OR_RETURN(
      stage->gates_,
      HostMemory::Allocate("scratch of gates", tokens * geometry.hc_count * sizeof(GateScalars), HugePages::kNo));
  PLEIAD_ASSIGN_OR_RETURN(
      stage->stitched_,
      HostMemory::Allocate("scratch of highway rows", pool.threads() * stage->hidden_ * sizeof(float), HugePages::kNo));
  stage->places_.resize(options.max_tokens);
  return stage;
}

uint64_t Stage::weight_bytes() const {
  uint64_t bytes = 0;
  for (const LayerConstants& layer : layers_) bytes += layer.bytes();
  return bytes;
}

uint64_t Stage::scratch_bytes() const {
  return embeddings_.size() + key_value_.size() + gates_.size() + stitched_.size() + projection_->scratch_bytes() +
         places_.size() * sizeof(TokenPlace);
}

size_t Stage::Grain(size_t items) const { return std::clamp<size_t>(items / (8 * pool_.threads()), 1, 16); }

void Stage::Run(const BatchPlan& plan) {
  PlaceTokens(plan);
  MoveUndoRows(plan);
  if (plan.num_tokens == 0) return;
  projection_->Run(layers_[plan.layer.value()].key_value.As<Bf16>(), embeddings(), plan.num_tokens,
                   key_value_.As<Bf16>());
  const size_t streams = geometry_.hc_count;
  const size_t items = plan.num_tokens * streams;
  pool_.ParallelFor(items, Grain(items), [&](size_t worker, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) GateToken(plan, worker, i / streams, i % streams);
  });
  pool_.ParallelFor(items, Grain(items), [&](size_t worker, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) ConvToken(plan, worker, i / streams, i % streams);
  });
}

void Stage::PlaceTokens(const BatchPlan& plan) {
  for (uint32_t s = 0; s < plan.segments.size(); ++s) {
    const SegmentPlan& segment = plan.segments[s];
    for (uint32_t t = 0; t < segment.num_tokens; ++t) places_[segment.first_token + t].segment = s;
  }
  for (uint32_t p = 0; p < plan.parts.size(); ++p) {
    const TensorPart& part = plan.parts[p];
    for (uint32_t t = 0; t < part.num_tokens; ++t) places_[part.first_token + t].part = p;
  }
}

void Stage::MoveUndoRows(const BatchPlan& plan) {
  const uint32_t rows = carries_.state_len();
  if (rows == 0) return;
  pool_.ParallelFor(plan.segments.size() * rows, rows, [&](size_t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const SegmentPlan& segment = plan.segments[i / rows];
      const uint32_t steps = static_cast<uint32_t>(i % rows) + 1;
      if (segment.carry == kNoCarry || steps > carries_.ValidRows(segment.ring)) continue;
      float* ring = carries_.RingRowBack(segment.carry, segment.ring, steps);
      float* undo = carries_.UndoRowBack(segment.carry, steps);
      // After a move back by undo the undo rows are those a long step would set aside.
      if (segment.undo_to_ring) {
        std::memcpy(ring, undo, carries_.row_bytes());
      } else if (segment.ring_to_undo) {
        std::memcpy(undo, ring, carries_.row_bytes());
      }
    }
  });
}

HighwayRow Stage::Highway(const TensorPart& part, size_t worker, size_t token, size_t stream) const {
  const size_t size = ByteSize(part.input_dtype);
  const size_t at = ((token - part.first_token) * channels_ + stream * hidden_) * size;
  if (part.input != nullptr) return {part.input + at, part.input_dtype};
  if (part.input_pieces.empty()) return {};
  auto* stitched = reinterpret_cast<std::byte*>(stitched_.As<float>() + worker * hidden_);
  return {StitchPieces(part.input_pieces, at, hidden_ * size, stitched), part.input_dtype};
}

void Stage::GateToken(const BatchPlan& plan, size_t worker, size_t token, size_t stream) {
  const LayerConstants& layer = layers_[plan.layer.value()];
  const Bf16* kv = key_value_.As<Bf16>() + token * kv_width_;
  GateArgs args;
  args.key = kv + stream * hidden_;
  args.value = kv + channels_;
  args.highway = Highway(plan.parts[places_[token].part], worker, token, stream);
  args.norm_key = &layer.norm_key[stream * hidden_];
  args.norm_query = &layer.norm_query[stream * hidden_];
  args.hidden = hidden_;
  args.eps = geometry_.rms_norm_eps;
  gates_.As<GateScalars>()[token * geometry_.hc_count + stream] = kernels_.gate(args);
}

void Stage::ConvToken(const BatchPlan& plan, size_t worker, size_t token, size_t stream) {
  const LayerConstants& layer = layers_[plan.layer.value()];
  const SegmentPlan& segment = plan.segments[places_[token].segment];
  const bool has_carry = segment.carry != kNoCarry;
  const size_t local = token - segment.first_token;
  const size_t at = stream * hidden_;

  std::array<ConvTap, kMaxTaps> taps;
  size_t num_taps = 0;
  const size_t kernel = geometry_.conv_kernel_size;
  for (size_t j = 0; j < kernel; ++j) {
    const size_t back = (kernel - 1 - j) * geometry_.dilation();
    ConvTap tap;
    tap.weights = &layer.taps[j * channels_ + at];
    if (back <= local) {
      tap.value = key_value_.As<Bf16>() + (token - back) * kv_width_ + channels_;
      tap.gate = gates_.As<GateScalars>()[(token - back) * geometry_.hc_count + stream];
    } else {
      const uint32_t steps = static_cast<uint32_t>(back - local);
      if (!has_carry || steps > carries_.ValidRows(segment.ring)) continue;
      const bool from_undo = segment.num_tokens > rollback_tokens_;
      tap.x = at + (from_undo ? carries_.UndoRowBack(segment.carry, steps)
                              : carries_.RingRowBack(segment.carry, segment.ring, steps));
    }
    taps[num_taps++] = tap;
  }

  const TensorPart& part = plan.parts[places_[token].part];
  ConvArgs args;
  args.taps = taps.data();
  args.num_taps = num_taps;
  args.norm_conv = &layer.norm_conv[at];
  // The ring may be written now: a short step's rows miss all it reads, a long step reads from undo.
  if (has_carry && carries_.state_len() > 0 && local + carries_.ring_rows() >= segment.num_tokens) {
    const size_t index = (segment.ring.cursor + local) % carries_.ring_rows();
    args.ring_row = at + carries_.RingRow(segment.carry, static_cast<uint32_t>(index));
  }
  if (part.kind == OutputKind::kHighway) args.highway = Highway(part, worker, token, stream);
  args.output = part.output + ((token - part.first_token) * channels_ + at) * ByteSize(part.output_dtype);
  args.output_dtype = part.output_dtype;
  args.hidden = hidden_;
  kernels_.conv(args);
}

void Stage::Read(const CarryRead& read) const {
  const uint32_t rows = carries_.state_len();
  for (uint32_t steps = 1; steps <= rows; ++steps) {
    float* to = read.rows + size_t{rows - steps} * channels_;
    if (steps <= carries_.ValidRows(read.ring)) {
      std::memcpy(to, carries_.RingRowBack(read.carry, read.ring, steps), carries_.row_bytes());
    } else {
      std::memset(to, 0, carries_.row_bytes());
    }
  }
}

void Stage::Write(const CarryWrite& write) {
  if (carries_.state_len() == 0) return;
  std::memcpy(carries_.RingRow(write.carry, 0), write.rows, carries_.state_len() * carries_.row_bytes());
}

void Stage::Save(CarrySlot carry, absl::Span<float> rows) const {
  if (!rows.empty()) std::memcpy(rows.data(), carries_.RingRow(carry, 0), rows.size() * sizeof(float));
}

void Stage::Load(CarrySlot carry, absl::Span<const float> rows) {
  if (!rows.empty()) std::memcpy(carries_.RingRow(carry, 0), rows.data(), rows.size() * sizeof(float));
}

}  // namespace pleiad
