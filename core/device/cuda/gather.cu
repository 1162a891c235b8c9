// gather: rows of arena and staging to the BF16 operand of the projection.
//
// Each thread moves 8 values of one row: 16 bytes of BF16, or 8 codes of E4M3 that become 16 bytes through a table of
// the 256 decoded codes (one rounding each, made on the host). Rows that are no multiple of 8 values go value by value.
// The first blocks move undo rows, which nothing in this launch reads.
#include "core/device/cuda/conv_rows.cuh"
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMaxMoveBlocks = 128;
constexpr uint32_t kStagingBit = 0x80000000u;

template <bool kF8, uint32_t kValues>
__global__ void __launch_bounds__(kThreads) Gather(const GatherArgs args, uint32_t per_row, uint32_t move_blocks) {
  if (blockIdx.x < move_blocks) {
    const uint32_t places = args.header->num_moves * args.carries.state_len;
    for (uint32_t i = blockIdx.x; i < places; i += move_blocks) MoveUndoRow(args.moves, i, args.carries);
    return;
  }
  __shared__ uint16_t decode[256];
  if (kF8) {
    decode[threadIdx.x] = args.f8_decode[threadIdx.x];
    __syncthreads();
  }
  const uint64_t i = uint64_t{blockIdx.x - move_blocks} * kThreads + threadIdx.x;
  const uint64_t row = i / per_row;
  // Both at once: the list of rows has room for every thread.
  const uint32_t num_rows = args.header->num_rows;
  const uint32_t index = args.rows[min(row, uint64_t{args.max_rows} - 1)];
  if (row >= num_rows) return;
  const uint32_t at = static_cast<uint32_t>(i % per_row) * kValues;
  const std::byte* rows = (index & kStagingBit) != 0 ? args.staging : args.arena;
  constexpr uint32_t kValueBytes = kF8 ? 1 : 2;
  const std::byte* from = rows + (uint64_t{index & ~kStagingBit} * args.head_dim + at) * kValueBytes;
  uint16_t* to = args.out + row * args.head_dim + at;
  if constexpr (kValues == 1) {
    *to = kF8 ? decode[*reinterpret_cast<const uint8_t*>(from)] : *reinterpret_cast<const uint16_t*>(from);
  } else if constexpr (kF8) {
    const uint2 codes = __ldcs(reinterpret_cast<const uint2*>(from));
    uint4 out;
    out.x = decode[codes.x & 0xFF] | uint32_t{decode[codes.x >> 8 & 0xFF]} << 16;
    out.y = decode[codes.x >> 16 & 0xFF] | uint32_t{decode[codes.x >> 24]} << 16;
    out.z = decode[codes.y & 0xFF] | uint32_t{decode[codes.y >> 8 & 0xFF]} << 16;
    out.w = decode[codes.y >> 16 & 0xFF] | uint32_t{decode[codes.y >> 24]} << 16;
    *reinterpret_cast<uint4*>(to) = out;
  } else {
    *reinterpret_cast<uint4*>(to) = __ldcs(reinterpret_cast<const uint4*>(from));
  }
}

}  // namespace

cudaError_t LaunchGather(const GatherArgs& args, uint32_t usual_moves, cudaStream_t stream) {
  const bool vectors = args.head_dim % 8 == 0;
  const uint32_t per_row = vectors ? args.head_dim / 8 : args.head_dim;
  const uint64_t blocks = (uint64_t{args.max_rows} * per_row + kThreads - 1) / kThreads;
  const uint32_t move_blocks = args.moves == nullptr ? 0 : min(usual_moves * args.carries.state_len, kMaxMoveBlocks);
  const dim3 grid(static_cast<uint32_t>(blocks) + move_blocks);
  if (args.f8_decode != nullptr) {
    if (vectors) {
      Gather<true, 8><<<grid, kThreads, 0, stream>>>(args, per_row, move_blocks);
    } else {
      Gather<true, 1><<<grid, kThreads, 0, stream>>>(args, per_row, move_blocks);
    }
  } else if (vectors) {
    Gather<false, 8><<<grid, kThreads, 0, stream>>>(args, per_row, move_blocks);
  } else {
    Gather<false, 1><<<grid, kThreads, 0, stream>>>(args, per_row, move_blocks);
  }
  return cudaGetLastError();
}

}  // namespace pleiad::cuda
