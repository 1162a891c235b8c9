// gather: rows of arena and staging to the BF16 operand of the projection.
//
// Each thread moves 8 values of one row, or of four rows in long batches so that their reads overlap: 16 bytes of BF16,
// or 8 codes of E4M3 that become 16 bytes through a table of the 256 decoded codes (one rounding each, made on the
// host). Rows that are no multiple of 8 values go value by value.
// The last blocks move undo rows, which nothing in this launch reads.
#include "core/device/cuda/conv_rows.cuh"
#include "core/device/cuda/gather.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMaxMoveBlocks = 64;
constexpr uint32_t kManyBlocks = 512;  // about what runs at once

constexpr uint32_t kEachOfMany = 4;

template <bool kF8, uint32_t kValues, uint32_t kEach>
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
  // All at once: the list of rows has room for every thread.
  const uint32_t num_rows = args.header->num_rows;
  uint32_t row[kEach];
  uint32_t at[kEach];
  uint32_t index[kEach];
#pragma unroll
  for (uint32_t j = 0; j < kEach; ++j) {
    const uint32_t i = (j * gather_blocks + blockIdx.x) * kThreads + threadIdx.x;
    row[j] = i / per_row;
    at[j] = i % per_row * kValues;
    index[j] = args.rows[min(row[j], args.max_rows - 1)];
  }
  if constexpr (kValues == 8) {
    uint4 values[kEach];
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j) {
      if (row[j] < num_rows) values[j] = EightValues<kF8>(args, index[j], at[j], decode);
    }
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j) {
      if (row[j] < num_rows) {
        *reinterpret_cast<uint4*>(args.out + uint64_t{row[j]} * args.head_dim + at[j]) = values[j];
      }
    }
  } else {
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j) {
      if (row[j] >= num_rows) continue;
      const std::byte* from = RowPiece<kF8>(args, index[j], at[j]);
      args.out[uint64_t{row[j]} * args.head_dim + at[j]] =
          kF8 ? decode[*reinterpret_cast<const uint8_t*>(from)] : *reinterpret_cast<const uint16_t*>(from);
    }
  }
}

template <bool kF8, uint32_t kValues>
void Launch(const GatherArgs& args, uint32_t move_blocks, cudaStream_t stream) {
  const uint32_t per_row = args.head_dim / kValues;
  const uint32_t blocks = (args.max_rows * per_row + kThreads - 1) / kThreads;
  if (blocks < kManyBlocks) {
    Gather<kF8, kValues, 1><<<blocks + move_blocks, kThreads, 0, stream>>>(args, per_row, move_blocks);
  } else {
    const uint32_t fewer = (blocks + kEachOfMany - 1) / kEachOfMany;
    Gather<kF8, kValues, kEachOfMany><<<fewer + move_blocks, kThreads, 0, stream>>>(args, per_row, move_blocks);
  }
}

}  // namespace

cudaError_t LaunchGather(const GatherArgs& args, uint32_t usual_moves, cudaStream_t stream) {
  const uint32_t move_blocks = args.moves == nullptr ? 0 : min(usual_moves * args.carries.state_len, kMaxMoveBlocks);
  if (args.max_rows + move_blocks == 0) return cudaSuccess;
  const bool vectors = args.head_dim % 8 == 0;
  if (args.f8_decode != nullptr) {
    vectors ? Launch<true, 8>(args, move_blocks, stream) : Launch<true, 1>(args, move_blocks, stream);
  } else {
    vectors ? Launch<false, 8>(args, move_blocks, stream) : Launch<false, 1>(args, move_blocks, stream);
  }
  return cudaGetLastError();
}

}  // namespace pleiad::cuda
