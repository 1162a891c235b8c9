// gather: rows of arena and staging to the BF16 operand of the projection.
//
// Each thread moves 8 values of one row: 16 bytes of BF16, or 8 codes of E4M3 that become 16 bytes through a table of
// the 256 decoded codes (one rounding each, made on the host). Rows that are no multiple of 8 values go value by value.
// In a graph the plan lies in host memory; the last block brings header and items over for the kernels behind.
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kStagingBit = 0x80000000u;

template <bool kF8, uint32_t kValues>
__global__ void __launch_bounds__(kThreads) Gather(const GatherArgs args, uint32_t per_row) {
  if (blockIdx.x == gridDim.x - 1) {
    const auto* from = reinterpret_cast<const uint4*>(args.copy_from);
    auto* to = reinterpret_cast<uint4*>(args.copy_to);
    for (uint32_t i = threadIdx.x; i < args.copy_bytes / 16; i += kThreads) to[i] = from[i];
    return;
  }
  __shared__ uint16_t decode[256];
  if (kF8) {
    decode[threadIdx.x] = args.f8_decode[threadIdx.x];
    __syncthreads();
  }
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t row = i / per_row;
  if (row >= args.header->num_rows) return;
  const uint32_t at = static_cast<uint32_t>(i % per_row) * kValues;
  const uint32_t index = args.rows[row];
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

cudaError_t LaunchGather(const GatherArgs& args, uint32_t max_rows, cudaStream_t stream) {
  const bool vectors = args.head_dim % 8 == 0;
  const uint32_t per_row = vectors ? args.head_dim / 8 : args.head_dim;
  const uint64_t blocks = (uint64_t{max_rows} * per_row + kThreads - 1) / kThreads + 1;
  const dim3 grid(static_cast<uint32_t>(blocks));
  if (args.f8_decode != nullptr) {
    if (vectors) {
      Gather<true, 8><<<grid, kThreads, 0, stream>>>(args, per_row);
    } else {
      Gather<true, 1><<<grid, kThreads, 0, stream>>>(args, per_row);
    }
  } else if (vectors) {
    Gather<false, 8><<<grid, kThreads, 0, stream>>>(args, per_row);
  } else {
    Gather<false, 1><<<grid, kThreads, 0, stream>>>(args, per_row);
  }
  return cudaGetLastError();
}

}  // namespace pleiad::cuda
