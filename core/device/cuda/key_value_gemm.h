// The projection: y[t, r] = bf16(sum_i weights[r, i] * e[t, i]) as one cuBLASLt matmul, FP32 accumulation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/cuda/cublaslt.h"
#include "core/device/cuda/owners.h"

namespace pleiad::cuda {

enum class SumOrder { kFastest, kInvariant };

// The algorithm of each number of tokens is chosen at start and kept: the library's first choice for it, or what Tune
// found faster. With kInvariant one serves all, without split sums, so that a token's row does not depend on the tokens
// beside it.
class KeyValueGemm {
 public:
  // `rows` = C + H outputs, `embed` = E inputs. `weights`, `e` and `y` of Enqueue must be aligned to 16 bytes.
  // NotFound: no cuBLASLt; Internal: it has no algorithm for the shape.
  static absl::StatusOr<std::unique_ptr<KeyValueGemm>> Create(uint32_t rows, uint32_t embed, uint32_t max_tokens,
                                                              SumOrder order);
  ~KeyValueGemm();

  // weights [rows, embed], e [tokens, embed], y [tokens, rows], all BF16. One stream at a time: calls share a
  // workspace. `tokens` <= max_tokens.
  absl::Status Enqueue(const uint16_t* weights, const uint16_t* e, uint32_t tokens, uint16_t* y, cudaStream_t stream);

  // Times the library's choices for each number of tokens on the GPU as it is and keeps the fastest; blocks, some
  // hundred milliseconds. Nothing with kInvariant. What `e` and `y` [max_tokens] hold is lost.
  absl::Status Tune(const uint16_t* weights, const uint16_t* e, uint16_t* y, cudaStream_t stream);

  uint64_t workspace_bytes() const { return workspace_.size(); }
  const std::string& detail() const { return detail_; }

 private:
  KeyValueGemm(const CublasLt& api, uint32_t rows, uint32_t embed, uint32_t max_tokens, SumOrder order);

  absl::Status MakeLayouts();
  absl::Status ChooseAlgorithms();
  // The library's choices, its favourite first; at least one.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Choices(uint32_t tokens);
  absl::Status Launch(const cublasLtMatmulAlgo_t& algorithm, const uint16_t* weights, const uint16_t* e, uint16_t* y,
                      cudaStream_t stream);
  absl::Status SetTokens(uint32_t tokens);
  size_t Bucket(uint32_t tokens) const;

  const CublasLt& api_;
  const uint32_t rows_;
  const uint32_t embed_;
  const uint32_t max_tokens_;
  const SumOrder order_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t weights_layout_ = nullptr;
  cublasLtMatrixLayout_t e_layout_ = nullptr;
  cublasLtMatrixLayout_t y_layout_ = nullptr;
  std::vector<uint32_t> bucket_tokens_;           // ascending, the last >= max_tokens
  std::vector<cublasLtMatmulAlgo_t> algorithms_;  // of each bucket
  DeviceMemoryBlock workspace_;
  std::string detail_;
};

}  // namespace pleiad::cuda
