// gate_conv for batches whose items have one token each, as in decode: the same work as gate_conv_fast.cu and the same
// bits. Nothing is staged, so a block takes few registers and next to no shared memory: it fits beside the block of
// a projection of up to 32 tokens, and has all that does not come from there when that ends.
#include "core/device/cuda/block_sums.cuh"
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/gate_conv.cuh"
#include "core/device/cuda/halves.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kMaxThreads = kFastHidden / kColumns;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;

// Half of the blocks run once the projection has left room: what they will read comes to the L2 cache meanwhile.
__device__ void PrefetchForLater(const GateConvArgs& args, const PlanHeader& header) {
  const uint32_t later = blockIdx.x + gridDim.x / 2;
  if (later >= gridDim.x || later / args.streams >= header.num_items) return;
  const ChainItem item = args.items[later / args.streams];
  const uint32_t lines = args.hidden * sizeof(float) / 128;
  const uint32_t line = threadIdx.x % lines;
  const uint32_t row = threadIdx.x / lines;
  const uint32_t at = later % args.streams * args.hidden + line * 32;
  const void* from = nullptr;
  if (row == 0) {
    if (item.input != 0 && (item.flags & kInputBf16) == 0) {
      from = reinterpret_cast<const float*>(item.input) + uint64_t{item.local} * args.streams * args.hidden + at;
    }
  } else if (row <= kPast) {
    from = CarryRow(args.carries, item, row * args.dilation);
    if (from != nullptr) from = static_cast<const float*>(from) + at;
  }
  if (from != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

__global__ void __launch_bounds__(kMaxThreads, 2) GateConvOnce(const GateConvArgs args) {
  __shared__ float4 sums[kMaxThreads / 32];
  const PlanHeader header = *args.header;
  const ChainItem item = args.items[blockIdx.x / args.streams];
  if (blockIdx.x / args.streams >= header.num_items) return;
  const uint32_t stream = blockIdx.x % args.streams;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t channels = args.streams * args.hidden;
  const uint32_t kv_width = channels + args.hidden;
  const uint32_t column = warp * 2 * kHalf + 4 * lane;  // this thread's, and kHalf further
  const uint32_t at = stream * args.hidden + column;    // in a row of width C

  uint4 taps[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = LoadHalves(args.layer.taps + j * channels + at);
  const Eight norm_key_query = LoadHalves(args.layer.norm_key_query + at);
  const Eight norm_conv = LoadHalves(args.layer.norm_conv + at);

  const bool input_bf16 = (item.flags & kInputBf16) != 0;
  const bool output_bf16 = (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const uint32_t input_row = channels * (spread || !input_bf16 ? 4 : 2);  // bytes
  const uint32_t output_row = channels * (spread || !output_bf16 ? 4 : 2);
  const uint64_t from = item.input + uint64_t{item.local} * input_row + input_row / args.streams * stream;
  const uint64_t to = item.output + uint64_t{item.local} * output_row + output_row / args.streams * stream;
  Eight q{};
  if (item.input != 0) {
    q = input_bf16 ? Widen(LoadHalves(reinterpret_cast<const uint16_t*>(from) + column))
                   : LoadHalves(reinterpret_cast<const float*>(from) + column);
  }
  // Undo rows may still be on their way. What the projection writes is read behind the wait alone.
  if (header.num_moves != 0) AwaitKernelBefore();
  // Rows before the token: of the steps before, of this batch, or none. past[j] lies j + 1 dilations back.
  Eight past[kPast];
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const float* row = CarryRow(args.carries, item, (j + 1) * args.dilation);
    past[j] = row != nullptr ? LoadHalves(row + at) : Eight{};
  }
  PrefetchForLater(args, header);
  AwaitKernelBefore();

  const uint16_t* const kv = args.key_value + uint64_t{item.first_token} * kv_width;
  const uint16_t* const own = kv + uint64_t{item.local} * kv_width;
  const Eight v = Widen(LoadHalves(own + channels + column));
  {
    const Eight k = Widen(LoadHalves(own + at));
    WarpSums(GateParts(k, q, v, norm_key_query), sums);
  }
  __syncthreads();
  const Gate gate = GateOf(SumsOfWarps(sums, args.hidden / (2 * kHalf)), args);
  ChainGate* const gates = args.gates + uint64_t{item.first_token} * args.streams + stream;
  // Before anything is waited for, as others wait for it.
  if (threadIdx.x == 0 && item.local + args.dilation < item.num_tokens) {
    Publish(gates + uint64_t{item.local} * args.streams, gate.gr, header.stamp);
  }
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const uint32_t back = (j + 1) * args.dilation;
    if (back > item.local) continue;
    const uint32_t before = item.local - back;
    const float gr = Await(gates + uint64_t{before} * args.streams, header.stamp);
    past[j] = ConvRow(Widen(LoadHalves(kv + uint64_t{before} * kv_width + channels + column)), gr, norm_conv);
  }
  ConvSums<kTaps> conv(taps, past);
  const Eight x = ConvRow(v, gate.gr, norm_conv);
  Eight out = Delta(conv.Take(taps, x), v, gate.g);
  if ((item.flags & kAddHighway) != 0) {
#pragma unroll
    for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
  }
  if (output_bf16) {
    StoreHalves(reinterpret_cast<uint16_t*>(to) + column, out);
  } else {
    StoreHalves(reinterpret_cast<float*>(to) + column, out);
  }
  if (float* row = RingRow(args.carries, item, item.local); row != nullptr) StoreHalves(row + at, x);
}

}  // namespace

cudaError_t LaunchGateConvOnce(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(max_items * args.streams);
  config.blockDim = dim3(args.hidden / kColumns);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.early_start;
  return cudaLaunchKernelEx(&config, GateConvOnce, args);
}

}  // namespace pleiad::cuda
