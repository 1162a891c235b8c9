#include "core/device/cuda/key_value_gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace pleiad::cuda {
namespace {

constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;
// Calls a choice is timed over, and how much faster than the one before it must be to be taken.
constexpr int kTuneCalls = 5;
constexpr float kTuneGain = 0.98f;
// Tokens whose first choice serves every batch with kInvariant.
constexpr uint32_t kInvariantTokens = 128;

// Numbers of tokens that get an algorithm of their own: dense where a step is short, then every 128, then every 1024.
std::vector<uint32_t> Buckets(uint32_t max_tokens) {
  std::vector<uint32_t> buckets = {1, 2, 4, 8, 16, 32, 64, 96};
  while (buckets.back() < max_tokens) {
    const uint32_t last = buckets.back();
    buckets.push_back(last < 128 ? 128 : last < 2048 ? last + 128 : last + 1024);
  }
  return buckets;
}

}  // namespace

KeyValueGemm::KeyValueGemm(const CublasLt& api, uint32_t rows, uint32_t embed, uint32_t max_tokens, SumOrder order)
    : api_(api),
      rows_(rows),
      embed_(embed),
      max_tokens_(max_tokens),
      order_(order),
      bucket_tokens_(Buckets(max_tokens)) {}

KeyValueGemm::~KeyValueGemm() {
  if (y_layout_ != nullptr) api_.layout_destroy(y_layout_);
  if (e_layout_ != nullptr) api_.layout_destroy(e_layout_);
  if (weights_layout_ != nullptr) api_.layout_destroy(weights_layout_);
  if (matmul_ != nullptr) api_.desc_destroy(matmul_);
  if (handle_ != nullptr) api_.destroy(handle_);
}

absl::StatusOr<std::unique_ptr<KeyValueGemm>> KeyValueGemm::Create(uint32_t rows, uint32_t embed, uint32_t max_tokens,
                                                                   SumOrder order) {
  PLEIAD_ASSIGN_OR_RETURN(const CublasLt* api, LoadCublasLt());
  std::unique_ptr<KeyValueGemm> gemm(new KeyValueGemm(*api, rows, embed, max_tokens, order));
  PLEIAD_ASSIGN_OR_RETURN(gemm->workspace_, AllocateDevice("projection workspace", kWorkspaceBytes));
  PLEIAD_RETURN_IF_ERROR(gemm->MakeLayouts());
  PLEIAD_RETURN_IF_ERROR(gemm->ChooseAlgorithms());
  return gemm;
}

// In the library's column-major words: y^T [rows, tokens] = weights^T' [rows, embed] * e^T [embed, tokens].
absl::Status KeyValueGemm::MakeLayouts() {
  PLEIAD_RETURN_IF_ERROR(ToStatus(api_.create(&handle_), "cublasLtCreate"));
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(api_.desc_create(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(api_.desc_set(matmul_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)), "TRANSA"));
  const auto layout = [&](cublasLtMatrixLayout_t* to, uint64_t height, uint64_t width) {
    return ToStatus(api_.layout_create(to, CUDA_R_16BF, height, width, static_cast<int64_t>(height)),
                    "cublasLtMatrixLayoutCreate");
  };
  PLEIAD_RETURN_IF_ERROR(layout(&weights_layout_, embed_, rows_));
  PLEIAD_RETURN_IF_ERROR(layout(&e_layout_, embed_, max_tokens_));
  return layout(&y_layout_, rows_, max_tokens_);
}

absl::Status KeyValueGemm::SetTokens(uint32_t tokens) {
  const uint64_t width = tokens;
  for (cublasLtMatrixLayout_t layout : {e_layout_, y_layout_}) {
    PLEIAD_RETURN_IF_ERROR(
        ToStatus(api_.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &width, sizeof(width)), "MATRIX_LAYOUT_COLS"));
  }
  return absl::OkStatus();
}

absl::Status KeyValueGemm::ChooseAlgorithms() {
  if (order_ == SumOrder::kInvariant) {
    PLEIAD_ASSIGN_OR_RETURN(const auto choices, Choices(kInvariantTokens));
    algorithms_.assign(bucket_tokens_.size(), choices.front());
    detail_ = "cuBLASLt, one algorithm for every batch";
    return absl::OkStatus();
  }
  for (uint32_t tokens : bucket_tokens_) {
    PLEIAD_ASSIGN_OR_RETURN(const auto choices, Choices(tokens));
    algorithms_.push_back(choices.front());
  }
  detail_ = absl::StrCat("cuBLASLt, ", algorithms_.size(), " sizes");
  return absl::OkStatus();
}

absl::Status KeyValueGemm::Tune(const uint16_t* weights, const uint16_t* e, uint16_t* y, cudaStream_t stream) {
  if (order_ == SumOrder::kInvariant) return absl::OkStatus();
  PLEIAD_ASSIGN_OR_RETURN(const Event begun, MakeEvent(EventTiming::kOn));
  PLEIAD_ASSIGN_OR_RETURN(const Event done, MakeEvent(EventTiming::kOn));
  uint32_t changed = 0;
  for (size_t i = 0; i < bucket_tokens_.size(); ++i) {
    const uint32_t tokens = std::min(bucket_tokens_[i], max_tokens_);
    PLEIAD_ASSIGN_OR_RETURN(const auto choices, Choices(tokens));
    PLEIAD_RETURN_IF_ERROR(SetTokens(tokens));
    float best = 0;
    for (size_t choice = 0; choice < choices.size(); ++choice) {
      // Once to load the kernel, then a row of calls. What the library refuses is no choice.
      if (!Launch(choices[choice], weights, e, y, stream).ok()) continue;
      PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(begun.get(), stream), "cudaEventRecord"));
      for (int call = 0; call < kTuneCalls; ++call) {
        PLEIAD_RETURN_IF_ERROR(Launch(choices[choice], weights, e, y, stream));
      }
      PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(done.get(), stream), "cudaEventRecord"));
      PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(done.get()), "cudaEventSynchronize"));
      float milliseconds = 0;
      PLEIAD_RETURN_IF_ERROR(
          ToStatus(cudaEventElapsedTime(&milliseconds, begun.get(), done.get()), "cudaEventElapsedTime"));
      if (best == 0 || milliseconds < best * kTuneGain) {
        best = milliseconds;
        algorithms_[i] = choices[choice];
      }
    }
    if (std::memcmp(&algorithms_[i], &choices.front(), sizeof(algorithms_[i])) != 0) ++changed;
  }
  absl::StrAppend(&detail_, ", ", changed, " tuned");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> KeyValueGemm::Choices(uint32_t tokens) {
  PLEIAD_RETURN_IF_ERROR(SetTokens(tokens));
  cublasLtMatmulPreference_t preference = nullptr;
  PLEIAD_RETURN_IF_ERROR(ToStatus(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const uint64_t workspace = order_ == SumOrder::kInvariant ? 0 : workspace_.size();
  // A split sum is added up in FP32: the other schemes round its parts to BF16.
  const uint32_t schemes =
      order_ == SumOrder::kInvariant ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  absl::Status status =
      ToStatus(api_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
               "MAX_WORKSPACE_BYTES");
  status.Update(
      ToStatus(api_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)),
               "REDUCTION_SCHEME_MASK"));
  // Operands start at multiples of 256 bytes (cudaMalloc), rows wherever E and C + H put them.
  constexpr int kChoices = 16;
  cublasLtMatmulHeuristicResult_t choices[kChoices] = {};
  int found = 0;
  if (status.ok()) {
    status = ToStatus(api_.heuristic(handle_, matmul_, weights_layout_, e_layout_, y_layout_, y_layout_, preference,
                                     kChoices, choices, &found),
                      "cublasLtMatmulAlgoGetHeuristic");
  }
  api_.preference_destroy(preference);
  PLEIAD_RETURN_IF_ERROR(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (choices[i].state != CUBLAS_STATUS_SUCCESS) continue;
    int32_t split_k = 1;
    size_t written = 0;
    api_.algo_get(&choices[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split_k, sizeof(split_k), &written);
    // 0 and 1: a sum is made whole by one block; -1 lets the library split it.
    if (order_ == SumOrder::kFastest || split_k == 0 || split_k == 1) algorithms.push_back(choices[i].algo);
  }
  if (!algorithms.empty()) return algorithms;
  return absl::InternalError(
      absl::StrCat("cuBLASLt has no algorithm for [", rows_, ", ", embed_, "] x ", tokens, " tokens in BF16"));
}

size_t KeyValueGemm::Bucket(uint32_t tokens) const {
  return static_cast<size_t>(std::lower_bound(bucket_tokens_.begin(), bucket_tokens_.end(), tokens) -
                             bucket_tokens_.begin());
}

absl::Status KeyValueGemm::Enqueue(const uint16_t* weights, const uint16_t* e, uint32_t tokens, uint16_t* y,
                                   cudaStream_t stream) {
  PLEIAD_RETURN_IF_ERROR(SetTokens(tokens));
  return Launch(algorithms_[Bucket(tokens)], weights, e, y, stream);
}

absl::Status KeyValueGemm::Launch(const cublasLtMatmulAlgo_t& algorithm, const uint16_t* weights, const uint16_t* e,
                                  uint16_t* y, cudaStream_t stream) {
  const float one = 1.0f;
  const float zero = 0.0f;
  return ToStatus(api_.matmul(handle_, matmul_, &one, weights, weights_layout_, e, e_layout_, &zero, y, y_layout_, y,
                              y_layout_, &algorithm, workspace_.data(), workspace_.size(), stream),
                  "cublasLtMatmul");
}

}  // namespace pleiad::cuda
