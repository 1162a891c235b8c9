// Rows that move as they are: staging to its twin, staging to slots, undo rows, carries in and out.
//
// Table rows: a block takes kRowsPerBlock pairs, reads them once, and its threads share the 16-byte pieces of those
// rows (bytes where a row is no multiple of 16). Conv rows: one block a row.
#include "core/device/cuda/conv_rows.cuh"
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kRowsPerBlock = 32;

enum class To { kSameRow, kSlot };

template <To kTo, typename Piece>
__global__ void __launch_bounds__(kThreads) CopyRows(const CopyRowsArgs args) {
  __shared__ RowPair pairs[kRowsPerBlock];
  const uint32_t first = blockIdx.x * kRowsPerBlock;
  const uint32_t count = min(kRowsPerBlock, args.count - first);
  if (threadIdx.x < count) pairs[threadIdx.x] = args.pairs[first + threadIdx.x];
  __syncthreads();
  const uint32_t per_row = args.row_bytes / sizeof(Piece);
  for (uint32_t i = threadIdx.x; i < count * per_row; i += kThreads) {
    const RowPair pair = pairs[i / per_row];
    const uint64_t to_row = kTo == To::kSlot ? pair.slot : pair.staging_row;
    reinterpret_cast<Piece*>(args.to + to_row * args.row_bytes)[i % per_row] =
        reinterpret_cast<const Piece*>(args.from + uint64_t{pair.staging_row} * args.row_bytes)[i % per_row];
  }
}

template <To kTo>
cudaError_t Launch(const CopyRowsArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const dim3 grid((args.count + kRowsPerBlock - 1) / kRowsPerBlock);
  if (args.row_bytes % 16 == 0) {
    CopyRows<kTo, uint4><<<grid, kThreads, 0, stream>>>(args);
  } else {
    CopyRows<kTo, uint8_t><<<grid, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

__global__ void __launch_bounds__(kThreads) UndoMoves(const UndoMove* moves, const CarryMemory carries) {
  MoveUndoRow(moves, blockIdx.x, carries);
}

__global__ void __launch_bounds__(kThreads)
    ReadCarry(const CarryMemory carries, uint32_t carry, uint32_t cursor, uint32_t valid, float* out) {
  const uint32_t steps = carries.state_len - blockIdx.x;
  const float* from = steps <= valid ? RingRowBack(carries, carry, cursor, steps) : nullptr;
  CopyRow(from, out + uint64_t{blockIdx.x} * carries.channels, carries.channels);
}

__global__ void __launch_bounds__(kThreads) WriteCarry(const CarryMemory carries, uint32_t carry, const float* in) {
  CopyRow(in + uint64_t{blockIdx.x} * carries.channels, Row(carries, carry, blockIdx.x), carries.channels);
}

}  // namespace

cudaError_t LaunchUploadRows(const CopyRowsArgs& args, cudaStream_t stream) {
  return Launch<To::kSameRow>(args, stream);
}

cudaError_t LaunchFillRows(const CopyRowsArgs& args, cudaStream_t stream) { return Launch<To::kSlot>(args, stream); }

cudaError_t LaunchUndoMoves(const UndoMove* moves, uint32_t count, const CarryMemory& carries, cudaStream_t stream) {
  if (carries.state_len == 0 || count == 0) return cudaSuccess;
  UndoMoves<<<count * carries.state_len, kThreads, 0, stream>>>(moves, carries);
  return cudaGetLastError();
}

cudaError_t LaunchReadCarry(const CarryMemory& carries, uint32_t carry, uint32_t cursor, uint32_t valid, float* out,
                            cudaStream_t stream) {
  if (carries.state_len == 0) return cudaSuccess;
  ReadCarry<<<carries.state_len, kThreads, 0, stream>>>(carries, carry, cursor, valid, out);
  return cudaGetLastError();
}

cudaError_t LaunchWriteCarry(const CarryMemory& carries, uint32_t carry, const float* in, cudaStream_t stream) {
  if (carries.state_len == 0) return cudaSuccess;
  WriteCarry<<<carries.state_len, kThreads, 0, stream>>>(carries, carry, in);
  return cudaGetLastError();
}

}  // namespace pleiad::cuda
