// gate_conv: gate, conv and output of a batch in one pass over key, value and highway.
//
// A block takes one item (see ChainItem) of one stream; thread i has columns 8i to 8i + 7. Because the conv is dilated
// by D, the tokens of an item, D apart, are each other's taps: their rows x stay in registers, and nothing of width C
// is written but the output and the ring's rows. A token costs one read of its key, value and highway and one write of
// its output; the next token's loads are in flight while this one is worked on.
//
// The first tokens of an item need rows of the item before it in the chain, which another block is working on. That
// block hands over the gate scalars of its last tokens through `gates`, computed before it begins: x follows from them
// and the value rows. Blocks start in the order of their index, so the block waited for runs or has run. The highway
// itself is read only by the block that writes its output, so output may replace input in place.
//
// Every sum over H has one order, fixed by the thread mapping: the batch around a token does not change its bits.
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kFastThreads = 320;

// What a token brings, as loaded: the highway is BF16 in `highway_low` alone, or FP32 in both.
struct Token {
  uint4 key;
  uint4 value;
  uint4 highway_low;
  uint4 highway_high;
};

struct Gate {
  float g;
  float gr;
};

// Four sums over the block. Lanes first swap halves so that each reduces one of the four: 6 shuffles, not 20.
__device__ float4 BlockSum(float4 part, float4* scratch) {
  const uint32_t lane = threadIdx.x % 32;
  const bool upper = (lane & 16) != 0;
  float low = upper ? part.y : part.x;
  float high = upper ? part.w : part.z;
  low += __shfl_xor_sync(0xFFFFFFFFu, upper ? part.x : part.y, 16);
  high += __shfl_xor_sync(0xFFFFFFFFu, upper ? part.z : part.w, 16);
  const bool odd = (lane & 8) != 0;
  float sum = odd ? high : low;
  sum += __shfl_xor_sync(0xFFFFFFFFu, odd ? low : high, 8);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  if (lane % 8 == 0) {
    reinterpret_cast<float*>(scratch)[threadIdx.x / 32 * 4 + (lane >> 4) + (lane >> 3 & 1) * 2] = sum;
  }
  __syncthreads();
  float4 total{0, 0, 0, 0};
  for (uint32_t w = 0; w < blockDim.x / 32; ++w) {
    const float4 other = scratch[w];
    total.x += other.x;
    total.y += other.y;
    total.z += other.z;
    total.w += other.w;
  }
  return total;
}

__device__ Gate GateOf(float4 sums, float hidden, float eps) {
  const float s = sums.z * rsqrtf(sums.x / hidden + eps) * rsqrtf(sums.y / hidden + eps) / sqrtf(hidden);
  // Comparisons with NaN are false, so NaN is kept.
  const float root = sqrtf(fabsf(s) < 1e-6f ? 1e-6f : fabsf(s));
  const float signed_root = s == 0 ? 0.0f : copysignf(root, s);
  Gate gate;
  gate.g = s != s ? s : 1.0f / (1.0f + __expf(-signed_root));
  gate.gr = gate.g * rsqrtf(gate.g * gate.g * (sums.w / hidden) + eps);
  return gate;
}

__device__ void Publish(ChainGate* gate, float gr, uint32_t stamp) {
  const uint64_t word = uint64_t{stamp} << 32 | __float_as_uint(gr);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(gate), "l"(word) : "memory");
}

// The scalar and its stamp are one word, so the word that is seen is whole.
__device__ float Await(const ChainGate* gate, uint32_t stamp) {
  uint64_t word;
  do {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(gate) : "memory");
  } while (static_cast<uint32_t>(word >> 32) != stamp);
  return __uint_as_float(static_cast<uint32_t>(word));
}

template <int kTaps, bool kFast>
__global__ void __launch_bounds__(kFast ? kFastThreads : kMaxHidden / kColumns, kFast ? 2 : 1)
    GateConv(const GateConvArgs args) {
  const uint32_t index = blockIdx.x / args.streams;
  const uint32_t stream = blockIdx.x % args.streams;
  if (index >= args.header->num_items) return;
  const ChainItem item = args.items[index];
  const uint32_t stamp = args.header->stamp;
  // Two sets: a thread may enter the next sum while another still reads the last.
  __shared__ float4 scratch[2][kFast ? kFastThreads / 32 : kMaxHidden / kColumns / 32];
  uint32_t turn = 0;

  const uint32_t hidden = args.hidden;
  const uint32_t channels = args.streams * hidden;
  const uint32_t column = threadIdx.x * kColumns;
  Columns columns;
  columns.count = column >= hidden ? 0 : min(kColumns, hidden - column);
  columns.vectors = hidden % kColumns == 0;
  const uint32_t at = stream * hidden + column;  // of a row of width C
  const uint32_t kv_width = channels + hidden;

  // The norms of this thread's columns lie in shared memory, which spares registers; no other thread reads them.
  __shared__ uint4 norms[kFast ? 3 : 2][kFast ? kFastThreads : kMaxHidden / kColumns];
  LoadF32<kFast>(args.layer.norm_key_query + at, columns, norms[0][threadIdx.x], norms[1][threadIdx.x]);
  if constexpr (kFast) norms[2][threadIdx.x] = LoadBf16<kFast>(args.layer.norm_conv + at, columns);
  const auto norm_conv = [&] {
    if constexpr (kFast) {
      return norms[2][threadIdx.x];
    } else {
      return LoadBf16<kFast>(args.layer.norm_conv + at, columns);
    }
  };
  uint4 taps[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = LoadBf16<kFast>(args.layer.taps + j * channels + at, columns);

  const bool input_bf16 = (item.flags & kInputBf16) != 0;
  const bool output_bf16 = (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const uint32_t input_size = input_bf16 ? 2 : 4;
  const uint32_t output_size = output_bf16 ? 2 : 4;
  const auto address = [&](uint64_t base, uint32_t size, uint32_t local) {
    const uint64_t row = uint64_t{local} * channels * (spread ? 4 : size);
    return base + row + uint64_t{stream} * hidden * (spread ? 4 : size) + column * size;
  };

  const auto load = [&](uint32_t local) {
    Token token;
    const uint16_t* kv = args.key_value + uint64_t{item.first_token + local} * kv_width;
    token.key = LoadBf16<kFast>(kv + at, columns);
    token.value = LoadBf16<kFast>(kv + channels + column, columns);
    token.highway_low = token.highway_high = uint4{0, 0, 0, 0};
    if (item.input != 0) {
      const uint64_t from = address(item.input, input_size, local);
      if (input_bf16) {
        token.highway_low = LoadBf16<kFast>(reinterpret_cast<const uint16_t*>(from), columns);
      } else {
        LoadF32<kFast>(reinterpret_cast<const float*>(from), columns, token.highway_low, token.highway_high);
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
    const Eight norm_key_query = AsFloats(norms[0][threadIdx.x], norms[1][threadIdx.x]);
    float4 part{0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      part.x += k.v[i] * k.v[i];
      part.y += q.v[i] * q.v[i];
      part.z += k.v[i] * q.v[i] * norm_key_query.v[i];
      part.w += v.v[i] * v.v[i];
    }
    const float4 sums = BlockSum(part, scratch[turn]);
    turn ^= 1;
    return GateOf(sums, static_cast<float>(hidden), args.eps);
  };
  // One rounding each, the same wherever a row is made from: ring, this item, the item before.
  const auto row_of = [&](const uint4& value, float gr) {
    const Eight v = Widen(value);
    const Eight norm = Widen(norm_conv());
    Eight x;
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) x.v[i] = __fmul_rn(__fmul_rn(v.v[i], gr), __fadd_rn(1.0f, norm.v[i]));
    return x;
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
    const uint32_t back = (j + 1) * args.dilation;
    uint4 low{0, 0, 0, 0};
    uint4 high{0, 0, 0, 0};
    if (back > item.local && (item.flags & kHasCarry) != 0 && back - item.local <= item.valid) {
      const uint32_t steps = back - item.local;
      const uint32_t ring_rows = args.carries.ring_rows;
      const uint32_t row = (item.flags & kFromUndo) != 0 ? ring_rows + args.carries.state_len - steps
                                                         : (item.cursor + ring_rows - steps) % ring_rows;
      LoadF32<kFast>(args.carries.rows +
                         (uint64_t{item.carry} * (ring_rows + args.carries.state_len) + row) * channels + at,
                     columns, low, high);
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
  for (uint32_t i = 0; i < item.count; ++i) {
    const uint32_t local = item.local + i * args.dilation;
    Token next = token;
    if (i + 1 < item.count) next = load(local + args.dilation);
    const Gate gate = gate_of(token);
    if (i == 0) {
      if (followed && item.count <= kPast) publish(local, gate.gr);
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
        const uint32_t back = (j + 1) * args.dilation;
        if (back > item.local) continue;
        const uint32_t before = item.local - back;
        const float gr = Await(gates + uint64_t{before} * args.streams, stamp);
        const uint16_t* kv = args.key_value + uint64_t{item.first_token + before} * kv_width;
        past[j] = row_of(LoadBf16<kFast>(kv + channels + column, columns), gr);
      }
    }

    const Eight x = row_of(token.value, gate.gr);
    Eight out;
    {
      Eight c{};
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
        const Eight w = Widen(taps[j]);
#pragma unroll
        for (uint32_t e = 0; e < kColumns; ++e) c.v[e] = __fmaf_rn(w.v[e], past[kPast - 1 - j].v[e], c.v[e]);
      }
      const Eight w = Widen(taps[kPast]);
      const Eight v = Widen(token.value);
#pragma unroll
      for (uint32_t e = 0; e < kColumns; ++e) {
        const float sum = __fmaf_rn(w.v[e], x.v[e], c.v[e]);
        out.v[e] = gate.g * v.v[e] + __fdividef(sum, 1.0f + __expf(-sum));
      }
    }
    if ((item.flags & kAddHighway) != 0) {
      const Eight q = highway(token);
#pragma unroll
      for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
    }
    const uint64_t to = address(item.output, output_size, local);
    if (output_bf16) {
      StoreBf16<kFast>(reinterpret_cast<uint16_t*>(to), columns, out);
    } else {
      StoreF32<kFast>(reinterpret_cast<float*>(to), columns, out);
    }
    // The ring may be written now: a short step's rows miss all it reads, a long step reads undo rows.
    if (kPast > 0 && (item.flags & kHasCarry) != 0 && local + args.carries.ring_rows >= item.num_tokens) {
      const uint32_t ring_rows = args.carries.ring_rows;
      const uint64_t row = uint64_t{item.carry} * (ring_rows + args.carries.state_len) + (item.cursor + local) % ring_rows;
      StoreF32<kFast>(args.carries.rows + row * channels + at, columns, x);
    }
#pragma unroll
    for (int j = kPast - 1; j > 0; --j) past[j] = past[j - 1];
    if (kPast > 0) past[0] = x;
    token = next;
  }
}

using Kernel = void (*)(GateConvArgs);

Kernel KernelFor(uint32_t hidden, uint32_t taps) {
  switch (taps) {
    case 1:
      return GateConv<1, false>;
    case 2:
      return GateConv<2, false>;
    case 3:
      return GateConv<3, false>;
    case 4:
      return hidden % kColumns == 0 && hidden <= kFastThreads * kColumns ? GateConv<4, true> : GateConv<4, false>;
    case 5:
      return GateConv<5, false>;
    case 6:
      return GateConv<6, false>;
    case 7:
      return GateConv<7, false>;
    default:
      return GateConv<8, false>;
  }
}

uint32_t ThreadsFor(uint32_t hidden) { return (hidden + 32 * kColumns - 1) / (32 * kColumns) * 32; }

}  // namespace

cudaError_t LaunchGateConv(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream) {
  if (max_items == 0) return cudaSuccess;
  const Kernel kernel = KernelFor(args.hidden, args.taps);
  kernel<<<max_items * args.streams, ThreadsFor(args.hidden), 0, stream>>>(args);
  return cudaGetLastError();
}

uint32_t ConcurrentItems(uint32_t hidden, uint32_t streams, uint32_t taps, uint32_t multiprocessors) {
  int blocks = 1;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, KernelFor(hidden, taps),
                                                    static_cast<int>(ThreadsFor(hidden)), 0) != cudaSuccess) {
    blocks = 1;
  }
  const uint32_t items = multiprocessors * static_cast<uint32_t>(blocks) / streams;
  return items > 0 ? items : 1;
}

}  // namespace pleiad::cuda
