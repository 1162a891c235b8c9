// The [key|value] projection of a batch: picks the fastest way for the batch, or the one way that every batch takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/host_memory.h"
#include "core/base/numeric.h"
#include "core/device/cpu/isa.h"
#include "core/device/cpu/kernels.h"
#include "core/device/cpu/panel_gemm.h"
#include "core/base/thread_pool.h"

namespace pleiad {

// Whether the order of summation may depend on the number of tokens.
enum class SumOrder { kFastest, kInvariant };

// Used by one caller at a time; blocks until done.
class Projection {
 public:
  // `pool` outlives the result. ResourceExhausted when scratch cannot be had.
  static absl::StatusOr<std::unique_ptr<Projection>> Create(size_t rows, size_t embed, Isa isa, SumOrder order,
                                                            ThreadPool& pool);

  // y[t, r] = bf16(sum_i weights[r, i] * e[t, i]), FP32 accumulation. weights [rows, embed], e [tokens, embed] with
  // PanelGemm::kPadTokens more readable rows, y [tokens, rows].
  void Run(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y);

  // Which ways are taken, for logs.
  const std::string& detail() const { return detail_; }
  uint64_t scratch_bytes() const { return dot_scratch_.size() + (panels_ ? panels_->scratch_bytes() : 0); }

 private:
  Projection(size_t rows, size_t embed, const CpuKernels& kernels, ThreadPool& pool);
  void RunDot(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y);

  const size_t rows_;
  const size_t embed_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  size_t dot_tokens_ = 0;  // batches up to here go through the dot loop
  HostMemory dot_scratch_;
  std::unique_ptr<PanelGemm> panels_;  // null: everything goes through the dot loop
  std::string detail_;
};

}  // namespace pleiad
