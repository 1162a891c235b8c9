#include "core/device/cpu/projection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

// Tokens the dot loop widens at a time.
constexpr size_t kDotChunk = 64;
// Rows of one range of the dot loop: with E = 2560 they stay in the second-level cache for all tokens of a chunk.
constexpr size_t kDotRows = 48;

// Where the panels overtake the dot loop, measured at the released geometry.
constexpr size_t kDotTokensBeforeF32Panels = 16;
constexpr size_t kDotTokensBeforeBf16Panels = 4;

}  // namespace

Projection::Projection(size_t rows, size_t embed, const CpuKernels& kernels, ThreadPool& pool)
    : rows_(rows), embed_(embed), kernels_(kernels), pool_(pool) {}

absl::StatusOr<std::unique_ptr<Projection>> Projection::Create(size_t rows, size_t embed, Isa isa, SumOrder order,
                                                               ThreadPool& pool) {
  const CpuKernels& kernels = KernelsFor(isa);
  std::unique_ptr<Projection> projection(new Projection(rows, embed, kernels, pool));
  PLEIAD_ASSIGN_OR_RETURN(
      projection->dot_scratch_,
      HostMemory::Allocate("projection scratch", kDotChunk * DotPadding(embed) * sizeof(float), HugePages::kNo));
  const std::string dot = absl::StrCat("dot loop (", Name(std::min(isa, Isa::kAvx512)), ")");
  if (order == SumOrder::kInvariant || isa == Isa::kPortable) {
    projection->detail_ = absl::StrCat(dot, " for every batch");
    return projection;
  }
  if (isa >= Isa::kAvx512Bf16) {
    auto panels = PanelGemm::Create(PanelMath::kBf16, rows, embed, kernels, pool);
    if (panels.ok()) {
      projection->panels_ = *std::move(panels);
      projection->dot_tokens_ = kDotTokensBeforeBf16Panels;
      projection->detail_ = absl::StrCat(dot, " up to ", projection->dot_tokens_, " tokens, oneDNN BF16 matmul above");
      return projection;
    }
    if (!absl::IsUnimplemented(panels.status())) return panels.status();
  }
  PLEIAD_ASSIGN_OR_RETURN(projection->panels_, PanelGemm::Create(PanelMath::kF32, rows, embed, kernels, pool));
  projection->dot_tokens_ = kDotTokensBeforeF32Panels;
  projection->detail_ =
      absl::StrCat(dot, " up to ", projection->dot_tokens_, " tokens, oneDNN sgemm on FP32 panels above");
  return projection;
}

void Projection::Run(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y) {
  const bool dot = panels_ == nullptr || tokens <= dot_tokens_;
  const size_t chunk = dot ? kDotChunk : PanelGemm::kMaxTokens;
  for (size_t t = 0; t < tokens; t += chunk) {
    const size_t n = std::min(chunk, tokens - t);
    if (dot) {
      RunDot(weights, e + t * embed_, n, y + t * rows_);
    } else {
      panels_->Run(weights, e + t * embed_, n, y + t * rows_);
    }
  }
}

void Projection::RunDot(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y) {
  const size_t padded = DotPadding(embed_);
  float* wide = dot_scratch_.As<float>();
  for (size_t t = 0; t < tokens; ++t) kernels_.widen_for_dot(e + t * embed_, embed_, wide + t * padded);
  const DotArgs args{weights, embed_, wide, padded, tokens, y, rows_};
  pool_.ParallelFor(rows_, kDotRows, [&](size_t, size_t begin, size_t end) { kernels_.dot(args, begin, end); });
}

}  // namespace pleiad
