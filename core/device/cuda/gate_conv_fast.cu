// gate_conv for four taps and streams of up to 2560 columns, a multiple of 8: the same work as gate_conv.cu, arranged
// so that memory never waits.
//
// A warp has 256 columns. Its lanes copy them to shared memory in 16-byte pieces side by side, kStages tokens ahead;
// then lane i works on columns 4i to 4i + 3 of either half, so that FP32 goes in and out 16 bytes a lane, side by side
// too. The sums of a token are made while the token before it goes through its conv, with one barrier a token. Tokens
// whose scalars the next item of the chain needs come first, for their scalars alone, which are kept for their conv.
#include "core/device/cuda/block_sums.cuh"
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/gate_conv.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kThreads = kFastHidden / kColumns;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kStages = 3;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;

constexpr uint32_t kHalf = 128;  // columns of half a warp's share

// Rows of one token and stream, as in memory.
struct Stage {
  uint16_t key[kFastHidden];
  uint16_t value[kFastHidden];
  float highway[kFastHidden];  // or BF16 in the first half of each warp's bytes
};

struct Shared {
  Stage stages[kStages];
  float norm_key_query[kFastHidden];
  float norm_conv[kFastHidden];
  float4 sums[2][kWarps];
  Gate known[kPast];  // of the item's last tokens, once they are handed on
};

// Columns `column` on and kHalf further; those at or past `width` read as zeros. Rows are multiples of 8 columns.
__device__ uint4 LoadHalvesBf16(const uint16_t* row, uint32_t column, uint32_t width) {
  uint2 low{0, 0};
  uint2 high{0, 0};
  if (column < width) low = *reinterpret_cast<const uint2*>(row + column);
  if (column + kHalf < width) high = *reinterpret_cast<const uint2*>(row + column + kHalf);
  return {low.x, low.y, high.x, high.y};
}

__device__ void LoadHalvesF32(const float* row, uint32_t column, uint32_t width, uint4& low, uint4& high) {
  low = high = uint4{0, 0, 0, 0};
  if (column < width) low = *reinterpret_cast<const uint4*>(row + column);
  if (column + kHalf < width) high = *reinterpret_cast<const uint4*>(row + column + kHalf);
}

__device__ void StoreHalvesF32(float* row, uint32_t column, uint32_t width, const Eight& value) {
  if (column < width) {
    __stcs(reinterpret_cast<float4*>(row + column), float4{value.v[0], value.v[1], value.v[2], value.v[3]});
  }
  if (column + kHalf < width) {
    __stcs(reinterpret_cast<float4*>(row + column + kHalf), float4{value.v[4], value.v[5], value.v[6], value.v[7]});
  }
}

__device__ void StoreHalvesBf16(uint16_t* row, uint32_t column, uint32_t width, const Eight& value) {
  if (column < width) {
    __stcs(reinterpret_cast<uint2*>(row + column),
           uint2{RoundPair(value.v[0], value.v[1]), RoundPair(value.v[2], value.v[3])});
  }
  if (column + kHalf < width) {
    __stcs(reinterpret_cast<uint2*>(row + column + kHalf),
           uint2{RoundPair(value.v[4], value.v[5]), RoundPair(value.v[6], value.v[7])});
  }
}

__device__ void CopyAsync(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}

__device__ void Commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ void AwaitAllBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__global__ void __launch_bounds__(kThreads, 2) GateConvFast(const GateConvArgs args) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const uint32_t index = blockIdx.x / args.streams;
  const uint32_t stream = blockIdx.x % args.streams;
  // Both at once: the list has room for every block.
  const PlanHeader header = *args.header;
  const ChainItem item = args.items[index];
  if (index >= header.num_items) return;

  const uint32_t thread = threadIdx.x;
  const uint32_t lane = thread % 32;
  const uint32_t hidden = args.hidden;
  const uint32_t channels = args.streams * hidden;
  const uint32_t kv_width = channels + hidden;
  const uint32_t share = thread / 32 * 2 * kHalf;  // the warp's first column
  const uint32_t column = share + 4 * lane;        // this thread's, and kHalf further
  const uint32_t at = stream * hidden;             // of a row of width C

  // All that does not come from the projection is asked for before it is waited for, and used after.
  const auto copy_row = [&](float* to, const float* from) {
    if (column < hidden) CopyAsync(to + column, from + column);
    if (column + kHalf < hidden) CopyAsync(to + column + kHalf, from + column + kHalf);
  };
  copy_row(shared.norm_key_query, args.layer.norm_key_query + at);
  copy_row(shared.norm_conv, args.layer.norm_conv + at);
  Commit();
  uint4 taps[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = LoadHalvesBf16(args.layer.taps + j * channels + at, column, hidden);

  const bool input_bf16 = (item.flags & kInputBf16) != 0;
  const bool output_bf16 = (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const uint32_t input_size = input_bf16 ? 2 : 4;
  const uint32_t output_size = output_bf16 ? 2 : 4;
  const uint64_t input_row = uint64_t{channels} * (spread ? 4 : input_size);
  const uint64_t output_row = uint64_t{channels} * (spread ? 4 : output_size);
  const uint64_t input = item.input + at * (spread ? 4 : input_size);
  const uint64_t output = item.output + at * (spread ? 4 : output_size);
  const uint16_t* const kv = args.key_value + uint64_t{item.first_token} * kv_width;

  // Rows of the steps before; those of this batch follow below. past[j] lies j + 1 dilations back.
  Eight past[kPast];
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    uint4 low{0, 0, 0, 0};
    uint4 high{0, 0, 0, 0};
    if (const float* row = CarryRow(args.carries, item, (j + 1) * args.dilation); row != nullptr) {
      LoadHalvesF32(row + at, column, hidden, low, high);
    }
    past[j] = AsFloats(low, high);
  }

  // What the projection wrote is read from here on.
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif

  // Turns: the tokens whose scalars are handed on, then all tokens of the item.
  const bool followed = item.local + item.count * args.dilation < item.num_tokens;
  const uint32_t ahead = followed ? min(kPast, static_cast<int>(item.count) - 1) : 0;
  const uint32_t turns = ahead + item.count;
  const auto local_of = [&](uint32_t turn) {
    return item.local + (turn < ahead ? item.count - ahead + turn : turn - ahead) * args.dilation;
  };
  // The last turns' scalars are known from the first.
  const auto known = [&](uint32_t turn) { return turn >= item.count && turn >= ahead; };
  // The warp's columns of a turn's rows; lanes take pieces of 16 bytes in turn.
  const auto fetch = [&](uint32_t turn, Stage& stage) {
    if (turn < turns) {
      const uint32_t local = local_of(turn);
      const uint16_t* row = kv + uint64_t{local} * kv_width;
      const uint32_t eight = share + 8 * lane;
      if (eight < hidden) {
        if (!known(turn)) CopyAsync(&stage.key[eight], row + at + eight);
        CopyAsync(&stage.value[eight], row + channels + eight);
      }
      if (item.input != 0) {
        const uint64_t from = input + local * input_row;
        if (input_bf16) {
          auto* to = reinterpret_cast<uint16_t*>(&stage.highway[share]);
          if (eight < hidden) CopyAsync(to + 8 * lane, reinterpret_cast<const uint16_t*>(from) + eight);
        } else {
          copy_row(stage.highway, reinterpret_cast<const float*>(from));
        }
      }
    }
    Commit();
  };
  const auto floats_of = [&](const float* row) {
    uint4 low;
    uint4 high;
    LoadHalvesF32(row, column, kFastHidden, low, high);
    return AsFloats(low, high);
  };
  const auto highway = [&](const Stage& stage) {
    if (input_bf16) {
      return Widen(LoadHalvesBf16(reinterpret_cast<const uint16_t*>(&stage.highway[share]), 4 * lane, 2 * kHalf));
    }
    return floats_of(stage.highway);
  };
  const auto value_of = [&](const Stage& stage) { return LoadHalvesBf16(stage.value, column, kFastHidden); };
  // Columns and tensors that are not there read as zeros.
  if (item.input == 0 || share + 2 * kHalf > hidden) {
    for (uint32_t i = hidden + lane; i < share + 2 * kHalf; i += 32) {
      if (i >= share) shared.norm_key_query[i] = shared.norm_conv[i] = 0;
    }
    for (Stage& stage : shared.stages) {
      for (uint32_t i = lane; i < 2 * kHalf; i += 32) {
        if (share + i >= hidden) stage.key[share + i] = stage.value[share + i] = 0;
        stage.highway[share + i] = 0;
      }
    }
    __syncwarp();
  }
  const auto begin_sums = [&](uint32_t turn, const Stage& stage) {
    if (known(turn)) return;
    const Eight k = Widen(LoadHalvesBf16(stage.key, column, kFastHidden));
    const Eight v = Widen(value_of(stage));
    const Eight q = highway(stage);
    const Eight norm = floats_of(shared.norm_key_query);
    float4 part{0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      part.x += k.v[i] * k.v[i];
      part.y += q.v[i] * q.v[i];
      part.z += k.v[i] * q.v[i] * norm.v[i];
      part.w += v.v[i] * v.v[i];
    }
    WarpSums(part, shared.sums[turn % 2]);
  };
  ChainGate* const gates = args.gates + uint64_t{item.first_token} * args.streams + stream;
  const auto end_sums = [&](uint32_t turn) {
    // Written before the barrier of the turn `ahead`, which is never a known one.
    if (known(turn)) return shared.known[turn - item.count];
    __syncthreads();
    const Gate gate = GateOf(SumsOfWarps(shared.sums[turn % 2], kWarps), args);
    if (followed && (turn < ahead || (turn == ahead && item.count <= kPast)) && thread == 0) {
      Publish(gates + uint64_t{local_of(turn)} * args.streams, gate.gr, header.stamp);
      if (turn < ahead) shared.known[turn] = gate;
    }
    return gate;
  };

  for (uint32_t turn = 0; turn < kStages; ++turn) fetch(turn, shared.stages[turn]);
  AwaitAllBut<kStages - 1>();
  __syncwarp();
  begin_sums(0, shared.stages[0]);
  Gate gate = end_sums(0);
  const auto take_turn = [&](uint32_t turn, Stage& stage, const Stage& next) {
    AwaitAllBut<kStages - 2>();
    __syncwarp();
    if (turn + 1 < turns) begin_sums(turn + 1, next);
    if (turn >= ahead) {
      const Eight norm = floats_of(shared.norm_conv);
      if (turn == ahead) {
#pragma unroll
        for (int j = 0; j < kPast; ++j) {
          const uint32_t back = (j + 1) * args.dilation;
          if (back > item.local) continue;
          const uint32_t before = item.local - back;
          const float gr = Await(gates + uint64_t{before} * args.streams, header.stamp);
          const uint4 value = LoadHalvesBf16(kv + uint64_t{before} * kv_width + channels, column, hidden);
          past[j] = ConvRow(Widen(value), gr, norm);
        }
      }
      const uint32_t local = local_of(turn);
      const Eight v = Widen(value_of(stage));
      const Eight x = ConvRow(v, gate.gr, norm);
      Eight out = Delta<kTaps>(taps, past, x, v, gate.g);
      if ((item.flags & kAddHighway) != 0) {
        const Eight q = highway(stage);
#pragma unroll
        for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
      }
      const uint64_t to = output + local * output_row;
      if (output_bf16) {
        StoreHalvesBf16(reinterpret_cast<uint16_t*>(to), column, hidden, out);
      } else {
        StoreHalvesF32(reinterpret_cast<float*>(to), column, hidden, out);
      }
      if (float* row = RingRow(args.carries, item, local); row != nullptr) {
        StoreHalvesF32(row + at, column, hidden, x);
      }
#pragma unroll
      for (int j = kPast - 1; j > 0; --j) past[j] = past[j - 1];
      past[0] = x;
    }
    // All lanes have read what the copies replace.
    __syncwarp();
    fetch(turn + kStages, stage);
    if (turn + 1 < turns) gate = end_sums(turn + 1);
  };
  uint32_t now = 0;  // turn % kStages
#pragma unroll 1
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const uint32_t next = now + 1 == kStages ? 0 : now + 1;
    take_turn(turn, shared.stages[now], shared.stages[next]);
    now = next;
  }
}

}  // namespace

cudaError_t LaunchGateConvFast(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream) {
  // The kernel starts its prologue while the last block of the projection ends.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(max_items * args.streams);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.early_start;
  return cudaLaunchKernelEx(&config, GateConvFast, args);
}

cudaError_t PrepareGateConvFast(int* blocks_per_multiprocessor) {
  const cudaError_t error =
      cudaFuncSetAttribute(GateConvFast, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (error != cudaSuccess) return error;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, GateConvFast, kThreads,
                                                       sizeof(Shared));
}

}  // namespace pleiad::cuda
