#include "core/device/cpu/panel_gemm.h"

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>

#include "core/base/status_macros.h"

// Of the OpenMP runtime that oneDNN is built on; its header comes with one compiler only.
extern "C" void omp_set_num_threads(int threads);

namespace pleiad {
namespace {

// Wide enough that packing e costs little, narrow enough for many panels per thread.
constexpr size_t kPanelRows = 128;

// oneDNN runs inside threads of ours: each keeps to itself.
void StayInThisThread() {
  thread_local const bool set = [] {
    omp_set_num_threads(1);
    return true;
  }();
  (void)set;
}

bool HasBf16Matmul() {
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const dnnl::matmul::desc desc({{16, 32}, Type::bf16, Tag::ab}, {{32, 16}, Type::bf16, Tag::ba},
                                  {{16, 16}, Type::f32, Tag::ab});
    const dnnl::matmul::primitive_desc primitive(desc, engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

// The matmuls of one worker. oneDNN keeps scratch memory of a primitive with the thread that made it, so they are made
// and run by the same thread. They are compiled for a shape: tokens are padded up to one of a few counts.
class PanelGemm::Matmuls {
 public:
  static size_t PaddedTokens(size_t tokens) {
    const size_t step = tokens <= 64 ? 16 : 64;
    return (tokens + step - 1) / step * step;
  }

  // e [PaddedTokens(tokens), embed], weights [rows, embed], result [PaddedTokens(tokens), rows]. Throws dnnl::error
  // when the processor has no such matmul, which Create has found out.
  void Run(const Bf16* e, const Bf16* weights, size_t tokens, size_t rows, size_t embed, float* result) {
    using Type = dnnl::memory::data_type;
    using Tag = dnnl::memory::format_tag;
    const auto m = static_cast<dnnl_dim_t>(PaddedTokens(tokens));
    const auto n = static_cast<dnnl_dim_t>(rows);
    const auto k = static_cast<dnnl_dim_t>(embed);
    const dnnl::memory::desc a({m, k}, Type::bf16, Tag::ab);
    const dnnl::memory::desc b({k, n}, Type::bf16, Tag::ba);
    const dnnl::memory::desc c({m, n}, Type::f32, Tag::ab);
    dnnl::matmul& matmul = by_shape_[{m, n}];
    if (!matmul) matmul = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine_));
    matmul.execute(stream_, {{DNNL_ARG_SRC, dnnl::memory(a, engine_, const_cast<Bf16*>(e))},
                             {DNNL_ARG_WEIGHTS, dnnl::memory(b, engine_, const_cast<Bf16*>(weights))},
                             {DNNL_ARG_DST, dnnl::memory(c, engine_, result)}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<std::pair<dnnl_dim_t, dnnl_dim_t>, dnnl::matmul> by_shape_;
};

PanelGemm::PanelGemm(PanelMath math, size_t rows, size_t embed, const CpuKernels& kernels, ThreadPool& pool)
    : math_(math), rows_(rows), embed_(embed), kernels_(kernels), pool_(pool) {}

PanelGemm::~PanelGemm() = default;

absl::StatusOr<std::unique_ptr<PanelGemm>> PanelGemm::Create(PanelMath math, size_t rows, size_t embed,
                                                             const CpuKernels& kernels, ThreadPool& pool) {
  std::unique_ptr<PanelGemm> gemm(new PanelGemm(math, rows, embed, kernels, pool));
  if (math == PanelMath::kBf16 && !HasBf16Matmul()) {
    return absl::UnimplementedError("oneDNN has no BF16 matmul for this processor");
  }
  const size_t panel = math == PanelMath::kF32 ? kPanelRows * embed : 0;
  const size_t wide = math == PanelMath::kF32 ? kMaxTokens * embed : 0;
  const size_t result = kMaxTokens * kPanelRows;
  const uint64_t floats = wide + uint64_t{pool.threads()} * (panel + result);
  PLEIAD_ASSIGN_OR_RETURN(gemm->scratch_,
                          HostMemory::Allocate("projection scratch", floats * sizeof(float), HugePages::kAdvise));
  float* next = gemm->scratch_.As<float>();
  gemm->wide_e_ = std::exchange(next, next + wide);
  for (size_t worker = 0; worker < pool.threads(); ++worker) {
    Worker buffers;
    buffers.panel = std::exchange(next, next + panel);
    buffers.result = std::exchange(next, next + result);
    if (math == PanelMath::kBf16) buffers.matmuls = std::make_unique<Matmuls>();
    gemm->workers_.push_back(std::move(buffers));
  }
  return gemm;
}

void PanelGemm::Run(const Bf16* weights, const Bf16* e, size_t tokens, Bf16* y) {
  if (math_ == PanelMath::kF32) {
    pool_.ParallelFor(tokens, 8, [&](size_t, size_t begin, size_t end) {
      kernels_.widen(e + begin * embed_, (end - begin) * embed_, wide_e_ + begin * embed_);
    });
  }
  const size_t panels = (rows_ + kPanelRows - 1) / kPanelRows;
  pool_.ParallelFor(panels, 1, [&](size_t worker, size_t begin, size_t end) {
    StayInThisThread();
    for (size_t panel = begin; panel < end; ++panel) {
      const size_t row = panel * kPanelRows;
      const size_t count = std::min(kPanelRows, rows_ - row);
      Panel(weights + row * embed_, e, tokens, count, workers_[worker]);
      for (size_t t = 0; t < tokens; ++t) {
        kernels_.round(workers_[worker].result + t * count, count, y + t * rows_ + row);
      }
    }
  });
}

void PanelGemm::Panel(const Bf16* weights, const Bf16* e, size_t tokens, size_t count, Worker& worker) {
  if (math_ == PanelMath::kBf16) {
    worker.matmuls->Run(e, weights, tokens, count, embed_, worker.result);
    return;
  }
  kernels_.widen(weights, count * embed_, worker.panel);
  const auto k = static_cast<dnnl_dim_t>(embed_);
  const auto n = static_cast<dnnl_dim_t>(count);
  dnnl_sgemm('N', 'T', static_cast<dnnl_dim_t>(tokens), n, k, 1.0f, wide_e_, k, worker.panel, k, 0.0f, worker.result,
             n);
}

}  // namespace pleiad
