// gather: rows of arena and staging to the BF16 operand of the projection.
//
// Each thread moves 8 values of one row: 16 bytes of BF16, or 8 codes of E4M3 that become 16 bytes through a table of
// the 256 decoded codes (one rounding each, made on the host). Rows that are no multiple of 8 values go value by value.
// The last blocks move undo rows, which nothing in this launch reads.
#include "core/device/cuda/conv_rows.cuh"
#include "core/device/cuda/gather.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMaxMoveBlocks = 64;

template <bool kF8, uint32_t kValues>
__global__ void __launch_bounds__(kThreads) Gather(const GatherArgs args, uint32_t per_row, uint32_t move_blocks) {
  const uint32_t gather_blocks = gridDim.x - move_blocks;
  if (blockIdx.x >= gather_blocks) {
    const uint32_t places = args.header->num_moves * args.carries.state_len;
    for (uint32_t i = blockIdx.x - gather_blocks; i < places; i += move_blocks)
      MoveUndoRow(args.moves, i, args.carries);
    return;
  }
  __shared__ uint16_t decode[256];
  if (kF8) {
    decode[threadIdx.x] = args.f8_decode[threadIdx.x];
    __syncthreads();
  }
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t row = i / per_row;
  // Both at once: the list of rows has room for every thread.
  const uint32_t num_rows = args.header->num_rows;
  const uint32_t index = args.rows[min(row, uint64_t{args.max_rows} - 1)];
  if (row >= num_rows) return;
  const uint32_t at = static_cast<uint32_t>(i % per_row) * kValues;
  uint16_t* to = args.out + row * args.head_dim + at;
  if constexpr (kValues == 8) {
    *reinterpret_cast<uint4*>(to) = EightValues<kF8>(args, index, at, decode);
  } else {
    const std::byte* from = RowPiece<kF8>(args, index, at);
    *to = kF8 ? decode[*reinterpret_cast<const uint8_t*>(from)] : *reinterpret_cast<const uint16_t*>(from);
  }
}

}  // namespace

cudaError_t LaunchGather(const GatherArgs& args, uint32_t usual_moves, cudaStream_t stream) {
  const bool vectors = args.head_dim % 8 == 0;
  const uint32_t per_row = vectors ? args.head_dim / 8 : args.head_dim;
  const uint64_t blocks = (uint64_t{args.max_rows} * per_row + kThreads - 1) / kThreads;
  const uint32_t move_blocks = args.moves == nullptr ? 0 : min(usual_moves * args.carries.state_len, kMaxMoveBlocks);
  if (blocks + move_blocks == 0) return cudaSuccess;
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
