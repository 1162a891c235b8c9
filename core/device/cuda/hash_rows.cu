// The n-gram hash of core/model/ngram_hasher.h, a thread for each row: neighbours write side by side and read the same
// ids. The last blocks copy the plan's image.
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMaxCopyBlocks = 16;

// `reciprocal` = floor((2^64 - 1) / divisor): the quotient is short by at most one.
__device__ uint64_t ModByReciprocal(uint64_t value, uint64_t divisor, uint64_t reciprocal) {
  const uint64_t remainder = value - __umul64hi(value, reciprocal) * divisor;
  return remainder >= divisor ? remainder - divisor : remainder;
}

__device__ void CopyImage(const HashArgs& args, uint32_t first, uint32_t stride) {
  for (uint32_t i = first; i < args.pieces + args.moves; i += stride) {
    const uint32_t at = i < args.pieces ? i : args.moves_at + (i - args.pieces);
    args.device_image[at] = args.image[at];
  }
}

__global__ void __launch_bounds__(kThreads) HashRows(const HashArgs args, uint32_t hash_blocks) {
  if (blockIdx.x >= hash_blocks) {
    CopyImage(args, (blockIdx.x - hash_blocks) * kThreads + threadIdx.x, (gridDim.x - hash_blocks) * kThreads);
    return;
  }
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t heads = args.context_len * args.heads_per_ngram;
  const uint32_t token = i / heads;
  if (token >= args.num_tokens) return;
  const uint32_t head = i % heads;
  const uint32_t* const id = args.ids + args.places[token];
  const uint32_t looks_back = head / args.heads_per_ngram + 1;
  uint64_t mix = *id * args.multipliers[0];
  bool cut = false;
  for (uint32_t back = 1; back <= looks_back; ++back) {
    const uint32_t before = cut ? args.eos_token_id : id[-static_cast<int32_t>(back)];
    cut = before == args.eos_token_id;
    mix ^= before * args.multipliers[back];
  }
  const HashHead to = args.heads[head];
  args.rows[i] = static_cast<uint32_t>(ModByReciprocal(mix, to.size, to.reciprocal) + to.first_slot);
}

}  // namespace

cudaError_t LaunchHashRows(const HashArgs& args, cudaStream_t stream) {
  const uint32_t rows = args.num_tokens * args.context_len * args.heads_per_ngram;
  const uint32_t hash_blocks = (rows + kThreads - 1) / kThreads;
  const uint32_t copy_blocks = min((args.pieces + args.moves + kThreads - 1) / kThreads, kMaxCopyBlocks);
  HashRows<<<hash_blocks + copy_blocks, kThreads, 0, stream>>>(args, hash_blocks);
  return cudaGetLastError();
}

}  // namespace pleiad::cuda
