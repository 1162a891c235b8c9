// project_few: gather and projection of one or two tokens in one kernel, for decode of few sequences: the time to read
// the weights once, without the launches of a gather and a matrix product.
//
// A block has an even share of the outputs, a warp takes one output after the other: its lanes read the weights' row
// side by side, 16 bytes each, all of it in flight at once, and the tokens' rows from shared memory, where the block
// gathered them while its first weights were on their way.
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/gather.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kWarps = 20;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kPieces = kFewEmbed / 256;  // of a weights' row, for a lane

template <int kTokens, bool kF8>
__global__ void __launch_bounds__(kThreads, 1) ProjectFew(const ProjectFewArgs args, uint32_t share) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  __shared__ uint4 embeddings[kTokens][kFewEmbed / 8];
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t pieces = args.embed / 8;
  const uint32_t end = min((blockIdx.x + 1) * share, args.outputs);
  uint32_t output = blockIdx.x * share + threadIdx.x / 32;

  uint4 weights[kPieces];
  const auto load = [&] {
    const auto* row = reinterpret_cast<const uint4*>(args.weights + uint64_t{output} * args.embed);
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t piece = i * 32 + lane;
      weights[i] = output < end && piece < pieces ? __ldcs(row + piece) : uint4{0, 0, 0, 0};
    }
  };
  load();

  const uint32_t per_row = args.gather.head_dim / 8;
  const uint32_t num_rows = args.gather.header->num_rows;
  for (uint32_t i = threadIdx.x; i < kTokens * pieces; i += kThreads) {
    const uint32_t row = i / per_row;
    uint4 piece{0, 0, 0, 0};
    if (row < num_rows) {
      piece = EightValues<kF8>(args.gather, args.gather.rows[row], i % per_row * 8, args.gather.f8_decode);
    }
    embeddings[i / pieces][i % pieces] = piece;
  }
  __syncthreads();

  for (; output < end; output += kWarps) {
    float sums[kTokens] = {};
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t piece = i * 32 + lane;
      if (piece >= pieces) continue;
      const Eight w = Widen(weights[i]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const Eight e = Widen(embeddings[t][piece]);
#pragma unroll
        for (uint32_t k = 0; k < kColumns; ++k) sums[t] += w.v[k] * e.v[k];
      }
    }
    const uint32_t done = output;
    output += kWarps;
    load();
    output = done;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (uint32_t distance = 16; distance > 0; distance /= 2) {
        sums[t] += __shfl_xor_sync(0xFFFFFFFFu, sums[t], distance);
      }
      if (lane == 0) {
        args.out[uint64_t{static_cast<uint32_t>(t)} * args.outputs + output] =
            static_cast<uint16_t>(RoundPair(sums[t], 0.0f));
      }
    }
  }
}

template <int kTokens>
cudaError_t Launch(const ProjectFewArgs& args, uint32_t blocks, cudaStream_t stream) {
  const uint32_t share = (args.outputs + blocks - 1) / blocks;
  if (args.gather.f8_decode != nullptr) {
    ProjectFew<kTokens, true><<<blocks, kThreads, 0, stream>>>(args, share);
  } else {
    ProjectFew<kTokens, false><<<blocks, kThreads, 0, stream>>>(args, share);
  }
  return cudaGetLastError();
}

}  // namespace

bool CanProjectFew(uint32_t tokens, uint32_t embed, uint32_t head_dim) {
  return tokens <= kFewTokens && embed <= kFewEmbed && head_dim % 8 == 0;
}

cudaError_t LaunchProjectFew(const ProjectFewArgs& args, uint32_t max_tokens, uint32_t multiprocessors,
                             cudaStream_t stream) {
  if (max_tokens == 1) return Launch<1>(args, multiprocessors, stream);
  return Launch<2>(args, multiprocessors, stream);
}

}  // namespace pleiad::cuda
