// gate_conv: gate, conv and output of a batch in one pass over key, value and highway.
//
// A block takes one item (see ChainItem) of one stream; thread i has columns 8i to 8i + 7. Because the conv is dilated
// by D, the tokens of an item, D apart, are each other's taps: what each adds to the convs of later ones stays in
// registers, and nothing of width C is written but the output and the ring's rows. A token costs one read of its key,
// value and highway and one write of its output; the next token's loads are in flight while this one is worked on.
//
// The first tokens of an item need rows of the item before it in the chain, which another block is working on. That
// block hands over the gate scalars of its last tokens through `gates`, computed before it begins: x follows from them
// and the value rows. Blocks start in the order of their index, so the block waited for runs or has run. The highway
// itself is read only by the block that writes its output, so output may replace input in place.
//
// Every sum over H has one order, fixed by the thread mapping: the batch around a token does not change its bits.
//
// This kernel takes any shape; gate_conv_fast.cu does the released model's.
#include "core/device/cuda/block_sums.cuh"
#include "core/device/cuda/gate_conv.cuh"

namespace pleiad::cuda {
namespace {

// What a token brings, as loaded: the highway is BF16 in `highway_low` alone, or FP32 in both.
struct Token {
  uint4 key;
  uint4 value;
  uint4 highway_low;
  uint4 highway_high;
};

constexpr uint32_t kMaxThreads = kMaxHidden / kColumns;

template <int kTaps>
__global__ void __launch_bounds__(kMaxThreads, 1) GateConv(const GateConvArgs args) {
  const uint32_t index = blockIdx.x / args.streams;
  const uint32_t stream = blockIdx.x % args.streams;
  if (index >= args.header->num_items) return;
  const ChainItem item = args.items[index];
  const uint32_t stamp = args.header->stamp;
  // Two sets: a thread may enter the next sum while another still reads the last.
  __shared__ float4 scratch[2][kMaxThreads / 32];
  uint32_t turn = 0;

  const uint32_t hidden = args.hidden;
  const uint32_t channels = args.streams * hidden;
  const uint32_t column = threadIdx.x * kColumns;
  const Columns columns{column >= hidden ? 0 : min(kColumns, hidden - column), hidden % kColumns == 0};
  const uint32_t at = stream * hidden + column;  // of a row of width C
  const uint32_t kv_width = channels + hidden;

  uint4 norm_low;
  uint4 norm_high;
  LoadF32(args.layer.norm_key_query + at, columns, norm_low, norm_high);
  uint4 conv_low;
  uint4 conv_high;
  LoadF32(args.layer.norm_conv + at, columns, conv_low, conv_high);
  uint4 taps[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = LoadBf16(args.layer.taps + j * channels + at, columns);

  const bool input_bf16 = (item.flags & kInputBf16) != 0;
  const bool output_bf16 = (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const auto address = [&](uint64_t base, uint32_t size, uint32_t local) {
    const uint64_t row = uint64_t{local} * channels * (spread ? 4 : size);
    return base + row + uint64_t{stream} * hidden * (spread ? 4 : size) + column * size;
  };

  const auto load = [&](uint32_t local) {
    Token token;
    const uint16_t* kv = args.key_value + uint64_t{item.first_token + local} * kv_width;
    token.key = LoadBf16(kv + at, columns);
    token.value = LoadBf16(kv + channels + column, columns);
    token.highway_low = token.highway_high = uint4{0, 0, 0, 0};
    if (item.input != 0) {
      const uint64_t from = address(item.input, input_bf16 ? 2 : 4, local);
      if (input_bf16) {
        token.highway_low = LoadBf16(reinterpret_cast<const uint16_t*>(from), columns);
      } else {
        LoadF32(reinterpret_cast<const float*>(from), columns, token.highway_low, token.highway_high);
      }
    }
    return token;
  };
  const auto highway = [&](const Token& token) {
    return input_bf16 ? Widen(token.highway_low) : AsFloats(token.highway_low, token.highway_high);
  };
  const auto gate_of = [&](const Token& token) {
    const Eight k = Widen(token.key);
    const Eight v = Widen(token.value);
    const Eight q = highway(token);
    const Eight norm = AsFloats(norm_low, norm_high);
    const float4 part = GateParts(k, q, v, norm);
    WarpSums(part, scratch[turn]);
    __syncthreads();
    const float4 sums = SumsOfWarps(scratch[turn], blockDim.x / 32);
    turn ^= 1;
    return GateOf(sums, args);
  };
  ChainGate* const gates = args.gates + uint64_t{item.first_token} * args.streams + stream;
  const auto publish = [&](uint32_t local, float gr) {
    if (threadIdx.x == 0) Publish(gates + uint64_t{local} * args.streams, gr, stamp);
  };

  // Rows of the steps before; those of this batch follow below. past[j] lies j + 1 dilations back.
  constexpr int kPast = kTaps - 1;
  Eight past[kPast > 0 ? kPast : 1];
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    uint4 low{0, 0, 0, 0};
    uint4 high{0, 0, 0, 0};
    if (const float* row = CarryRow(args.carries, item, (j + 1) * args.dilation); row != nullptr) {
      LoadF32(row + at, columns, low, high);
    }
    past[j] = AsFloats(low, high);
  }

  const bool followed = item.local + item.count * args.dilation < item.num_tokens;
  if (followed) {
    for (uint32_t i = max(1, static_cast<int>(item.count) - kPast); i < item.count; ++i) {
      const uint32_t local = item.local + i * args.dilation;
      publish(local, gate_of(load(local)).gr);
    }
  }

  Token token = load(item.local);
  Gate gate = gate_of(token);
  if (followed && item.count <= kPast) publish(item.local, gate.gr);
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const uint32_t back = (j + 1) * args.dilation;
    if (back > item.local) continue;
    const uint32_t before = item.local - back;
    const float gr = Await(gates + uint64_t{before} * args.streams, stamp);
    const uint16_t* kv = args.key_value + uint64_t{item.first_token + before} * kv_width;
    past[j] = ConvRow(Widen(LoadBf16(kv + channels + column, columns)), gr, AsFloats(conv_low, conv_high));
  }
  ConvSums<kTaps> conv(taps, past);
  for (uint32_t i = 0; i < item.count; ++i) {
    const uint32_t local = item.local + i * args.dilation;
    Token next = token;
    if (i + 1 < item.count) next = load(local + args.dilation);
    if (i > 0) gate = gate_of(token);
    const Eight v = Widen(token.value);
    const Eight x = ConvRow(v, gate.gr, AsFloats(conv_low, conv_high));
    Eight out = Delta(conv.Take(taps, x), v, gate.g);
    if ((item.flags & kAddHighway) != 0) {
      const Eight q = highway(token);
#pragma unroll
      for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
    }
    const uint64_t to = address(item.output, output_bf16 ? 2 : 4, local);
    if (output_bf16) {
      StoreBf16(reinterpret_cast<uint16_t*>(to), columns, out);
    } else {
      StoreF32(reinterpret_cast<float*>(to), columns, out);
    }
    if (float* row = RingRow(args.carries, item, local); row != nullptr) StoreF32(row + at, columns, x);
    token = next;
  }
}

using Kernel = void (*)(GateConvArgs);

Kernel KernelFor(uint32_t taps) {
  constexpr Kernel kKernels[kMaxConvTaps] = {GateConv<1>, GateConv<2>, GateConv<3>, GateConv<4>,
                                             GateConv<5>, GateConv<6>, GateConv<7>, GateConv<8>};
  return kKernels[taps - 1];
}

bool IsReleasedShape(uint32_t hidden, uint32_t taps) { return taps == 4 && hidden % 256 == 0 && hidden <= kFastHidden; }

uint32_t ThreadsFor(uint32_t hidden) { return (hidden + 32 * kColumns - 1) / (32 * kColumns) * 32; }

}  // namespace

cudaError_t LaunchGateConv(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream) {
  if (max_items == 0) return cudaSuccess;
  if (args.fast != 0 && args.once != 0) return LaunchGateConvOnce(args, max_items, stream);
  if (args.fast != 0) return LaunchGateConvFast(args, max_items, stream);
  KernelFor(args.taps)<<<max_items * args.streams, ThreadsFor(args.hidden), 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t PrepareGateConv(uint32_t hidden, uint32_t streams, uint32_t taps, uint32_t multiprocessors,
                            GateConvSetup* setup) {
  int blocks = 0;
  cudaError_t error = cudaSuccess;
  if (IsReleasedShape(hidden, taps)) error = PrepareGateConvFast(setup, &blocks);
  if (error == cudaSuccess && setup->fast == 0) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, KernelFor(taps),
                                                          static_cast<int>(ThreadsFor(hidden)), 0);
  }
  const uint32_t items = multiprocessors * static_cast<uint32_t>(blocks) / streams;
  setup->concurrent_items = items > 0 ? items : 1;
  return error;
}

}  // namespace pleiad::cuda
