// [key|value] projection of many tokens through oneDNN, one panel of weight rows at a time per thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/host_memory.h"
#include "core/base/numeric.h"
#include "core/device/cpu/kernels.h"
#include "core/base/thread_pool.h"

namespace pleiad {

enum class PanelMath {
  kF32,   // panels widened to FP32, sgemm: processors without BF16 products
  kBf16,  // BF16 x BF16 -> FP32 matmul
};

// y[t, r] = bf16(sum_i weights[r, i] * e[t, i]) with FP32 accumulation: the same rounding points in both maths. The
// order of summation is oneDNN's. Used by one caller at a time; blocks until done.
class PanelGemm {
 public:
  // Tokens of one call; also what the buffers are sized for.
  static constexpr size_t kMaxTokens = 512;
  static constexpr size_t kPadTokens = 64;

  // `kernels` and `pool` outlive the result. ResourceExhausted when the buffers cannot be had,
  // Unimplemented when oneDNN has no such product for this processor.
  static absl::StatusOr<std::unique_ptr<PanelGemm>> Create(PanelMath math, size_t rows, size_t embed,
                                                           const CpuKernels& kernels, ThreadPool& pool);
  ~PanelGemm();

  // weights [rows, embed], e [tokens, embed], y [tokens, rows]; 1 <= tokens <= kMaxTokens. kPadTokens more rows of e
  // are readable; what they hold does not matter.
  void Run(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y);

  uint64_t scratch_bytes() const { return scratch_.size(); }

 private:
  class Matmuls;
  struct Worker {
    float* panel = nullptr;            // [kPanelRows, embed], kF32 only
    float* result = nullptr;           // [kMaxTokens, kPanelRows]
    std::unique_ptr<Matmuls> matmuls;  // kBf16 only
  };

  PanelGemm(PanelMath math, size_t rows, size_t embed, const CpuKernels& kernels, ThreadPool& pool);
  void Panel(const Bf16* weights, const Bf16* e, size_t tokens, size_t count, Worker& worker);

  const PanelMath math_;
  const size_t rows_;
  const size_t embed_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  HostMemory scratch_;
  float* wide_e_ = nullptr;  // [kMaxTokens, embed], kF32 only
  std::vector<Worker> workers_;
};

}  // namespace pleiad
