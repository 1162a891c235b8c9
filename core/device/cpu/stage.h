// One batch after its gather: projection, gate, conv, output and the carries' rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/plan.h"
#include "core/device/cpu/carry_pool.h"
#include "core/device/cpu/kernels.h"
#include "core/device/cpu/layer_constants.h"
#include "core/device/cpu/projection.h"
#include "core/base/thread_pool.h"
#include "core/device/device.h"

namespace pleiad {

// Used by one thread at a time; blocks until done. Every sum is made whole by one thread in one order, so apart from
// the projection nothing depends on batch or threads.
class Stage {
 public:
  // Most conv taps a config may ask for.
  static constexpr uint32_t kMaxTaps = 64;

  // `pool` outlives the result. `options` has passed Validate(). ResourceExhausted when memory cannot be had.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(const DeviceOptions& options, Isa isa,
                                                       std::vector<LayerConstants> layers, ThreadPool& pool);

  // Where the gather of a batch goes: [max_tokens, E].
  Bf16* embeddings() const { return embeddings_.As<Bf16>(); }

  // `plan` has passed CheckPlan; embeddings() holds its rows.
  void Run(const BatchPlan& plan);
  void Read(const CarryRead& read) const;
  void Write(const CarryWrite& write);
  // As Device::SaveCarry and LoadCarry.
  void Save(CarrySlot carry, absl::Span<float> rows) const;
  void Load(CarrySlot carry, absl::Span<const float> rows);

  const std::string& detail() const { return projection_->detail(); }
  uint64_t carry_bytes() const { return carries_.bytes(); }
  uint64_t weight_bytes() const;
  uint64_t scratch_bytes() const;

 private:
  // What a token needs to know of the batch around it.
  struct TokenPlace {
    uint32_t segment = 0;
    uint32_t part = 0;
  };

  Stage(const DeviceOptions& options, Isa isa, std::vector<LayerConstants> layers, ThreadPool& pool);

  void PlaceTokens(const BatchPlan& plan);
  void MoveUndoRows(const BatchPlan& plan);
  void GateToken(const BatchPlan& plan, size_t worker, size_t token, size_t stream);
  void ConvToken(const BatchPlan& plan, size_t worker, size_t token, size_t stream);
  // Valid until the worker's next one.
  HighwayRow Highway(const TensorPart& part, size_t worker, size_t token, size_t stream) const;
  size_t Grain(size_t items) const;

  const Geometry geometry_;
  const uint32_t rollback_tokens_;
  const size_t hidden_;    // H
  const size_t channels_;  // C
  const size_t kv_width_;  // C + H
  const CpuKernels& kernels_;
  const std::vector<LayerConstants> layers_;
  ThreadPool& pool_;
  CarryPool carries_;
  std::unique_ptr<Projection> projection_;
  HostMemory embeddings_;           // BF16 [max_tokens + PanelGemm::kPadTokens, E]
  HostMemory key_value_;            // BF16 [max_tokens, C + H]
  HostMemory gates_;                // GateScalars [max_tokens, hc]
  HostMemory stitched_;             // [threads, H] FP32: a worker's row of a highway that lies in several pieces
  std::vector<TokenPlace> places_;  // [max_tokens]
};

}  // namespace pleiad
