// gate_conv for four taps and streams of up to 2560 columns, a multiple of 256: the same work as gate_conv.cu, arranged
// so that memory never waits.
//
// A warp has 256 columns. Its lanes copy them to shared memory in 16-byte pieces side by side, some tokens ahead; then
// lane i works on columns 4i to 4i + 3 of either half, so that FP32 goes in and out 16 bytes a lane, side by side too.
// A token's sums are begun two tokens before its conv and finished by one warp in turn; warps wait for one another only
// where these two hand over, and hardly there.
// Tokens whose scalars the next item of the chain needs come first, for their scalars alone.
#include "core/device/cuda/block_sums.cuh"
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/gate_conv.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kMaxThreads = kFastHidden / kColumns;
constexpr uint32_t kStages = 4;
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
  float4 sums[4][kMaxThreads / 32];
  Gate gates[2];
  uint64_t sums_ready[2];  // mbarriers: all warps have begun a token's sums
  uint64_t gate_ready[2];  // one warp has finished them
};

// Columns of this thread: `row` points at the first, the others lie kHalf further.
__device__ uint4 LoadHalves(const uint16_t* row) {
  const uint2 low = *reinterpret_cast<const uint2*>(row);
  const uint2 high = *reinterpret_cast<const uint2*>(row + kHalf);
  return {low.x, low.y, high.x, high.y};
}

__device__ Eight LoadHalves(const float* row) {
  return AsFloats(*reinterpret_cast<const uint4*>(row), *reinterpret_cast<const uint4*>(row + kHalf));
}

__device__ void StoreHalves(float* row, const Eight& value) {
  __stcs(reinterpret_cast<float4*>(row), float4{value.v[0], value.v[1], value.v[2], value.v[3]});
  __stcs(reinterpret_cast<float4*>(row + kHalf), float4{value.v[4], value.v[5], value.v[6], value.v[7]});
}

__device__ void StoreHalves(uint16_t* row, const Eight& value) {
  __stcs(reinterpret_cast<uint2*>(row), uint2{RoundPair(value.v[0], value.v[1]), RoundPair(value.v[2], value.v[3])});
  __stcs(reinterpret_cast<uint2*>(row + kHalf),
         uint2{RoundPair(value.v[4], value.v[5]), RoundPair(value.v[6], value.v[7])});
}

__device__ uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ void CopyAsync(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from) : "memory");
}

__device__ void Commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}

// What this thread wrote is seen by whoever has waited.
__device__ void Arrive(uint64_t* barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(SharedAddress(barrier)) : "memory");
}

// For the end of a phase: `parity` 0 is the first, 1 the second, and so on in turn.
__device__ void AwaitPhase(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(SharedAddress(barrier)), "r"(parity)
                 : "memory");
#else
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(SharedAddress(barrier)), "r"(parity)
                 : "memory");
#endif
  }
}

// This warp's copies but the last kPending groups have come, for all its lanes.
template <int kPending>
__device__ void AwaitAllBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

__global__ void __launch_bounds__(kMaxThreads, 2) GateConvFast(const GateConvArgs args) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const uint32_t index = blockIdx.x / args.streams;
  const uint32_t stream = blockIdx.x % args.streams;
  // Both at once: the list has room for every block.
  const PlanHeader header = *args.header;
  const ChainItem item = args.items[index];
  if (index >= header.num_items) return;

  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.sums_ready) InitBarrier(&barrier, args.hidden / (2 * kHalf));
    for (uint64_t& barrier : shared.gate_ready) InitBarrier(&barrier, 1);
  }
  __syncthreads();

  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = args.hidden / (2 * kHalf);
  const uint32_t channels = args.streams * args.hidden;
  const uint32_t kv_width = channels + args.hidden;
  const uint32_t share = warp * 2 * kHalf;   // the warp's first column
  const uint32_t column = share + 4 * lane;  // this thread's, and kHalf further
  const uint32_t eight = share + 8 * lane;   // of a piece of 16 bytes of BF16
  const uint32_t at = stream * args.hidden;  // of a row of width C

  // All that does not come from the projection is asked for before it is waited for, and used after.
  const auto copy_floats = [&](float* to, const float* from) {
    CopyAsync(to + column, from + column);
    CopyAsync(to + column + kHalf, from + column + kHalf);
  };
  copy_floats(shared.norm_key_query, args.layer.norm_key_query + at);
  copy_floats(shared.norm_conv, args.layer.norm_conv + at);
  uint4 taps[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = LoadHalves(args.layer.taps + j * channels + at + column);
  // Rows of the steps before; those of this batch follow below. past[j] lies j + 1 dilations back.
  Eight past[kPast];
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    past[j] = Eight{};
    if (const float* row = CarryRow(args.carries, item, (j + 1) * args.dilation); row != nullptr) {
      past[j] = LoadHalves(row + at + column);
    }
  }

  const bool input_bf16 = (item.flags & kInputBf16) != 0;
  const bool output_bf16 = (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const uint32_t input_size = spread || !input_bf16 ? 4 : 2;
  const uint32_t output_size = spread || !output_bf16 ? 4 : 2;
  const uint64_t input = item.input + at * input_size + (input_bf16 ? eight * 2 : column * 4);
  const uint64_t output = item.output + at * output_size + column * (output_bf16 ? 2 : 4);
  const uint16_t* const kv = args.key_value + uint64_t{item.first_token} * kv_width;
  if (item.input == 0) {
    for (Stage& stage : shared.stages) {
      for (uint32_t i = lane; i < 2 * kHalf; i += 32) stage.highway[share + i] = 0;
    }
    __syncwarp();
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
  const auto fetch = [&](uint32_t turn) {
    if (turn < turns) {
      Stage& stage = shared.stages[turn % kStages];
      const uint32_t local = local_of(turn);
      const uint16_t* row = kv + uint64_t{local} * kv_width;
      CopyAsync(&stage.key[eight], row + at + eight);
      CopyAsync(&stage.value[eight], row + channels + eight);
      if (item.input != 0) {
        const uint64_t from = input + uint64_t{local} * (channels * input_size);
        if (input_bf16) {
          CopyAsync(reinterpret_cast<uint16_t*>(&stage.highway[share]) + 8 * lane, reinterpret_cast<void*>(from));
        } else {
          CopyAsync(&stage.highway[column], reinterpret_cast<const float*>(from));
          CopyAsync(&stage.highway[column + kHalf], reinterpret_cast<const float*>(from) + kHalf);
        }
      }
    }
    Commit();
  };
  const auto highway = [&](const Stage& stage) {
    if (input_bf16) {
      return Widen(LoadHalves(reinterpret_cast<const uint16_t*>(&stage.highway[share]) + 4 * lane));
    }
    return LoadHalves(&stage.highway[column]);
  };
  const auto begin_sums = [&](uint32_t turn) {
    const Stage& stage = shared.stages[turn % kStages];
    const Eight k = Widen(LoadHalves(&stage.key[column]));
    const Eight v = Widen(LoadHalves(&stage.value[column]));
    const Eight q = highway(stage);
    const Eight norm = LoadHalves(&shared.norm_key_query[column]);
    const float4 part = GateParts(k, q, v, norm);
    WarpSums(part, shared.sums[turn % 4]);
    __syncwarp();
    if (lane == 0) Arrive(&shared.sums_ready[turn % 2]);
  };
  ChainGate* const gates = args.gates + uint64_t{item.first_token} * args.streams + stream;
  // By a whole warp. Nobody overwrites these sums, nor the scalars they become, before all have read them: what would
  // needs sums that every warp begins later than it reads.
  const auto end_sums = [&](uint32_t turn) {
    AwaitPhase(&shared.sums_ready[turn % 2], turn / 2 % 2);
    const Gate gate = GateOf(SumsOfWarps(shared.sums[turn % 4], warps), args);
    if (lane == 0 && followed && (turn < ahead || (turn == ahead && item.count <= kPast))) {
      Publish(gates + uint64_t{local_of(turn)} * args.streams, gate.gr, header.stamp);
    }
    return gate;
  };
  uint32_t finisher = 0;
  const auto end_sums_for_all = [&](uint32_t turn) {
    if (turn < turns && warp == finisher) {
      const Gate gate = end_sums(turn);
      if (lane == 0) {
        shared.gates[turn % 2] = gate;
        Arrive(&shared.gate_ready[turn % 2]);
      }
    }
    finisher = finisher + 1 == warps ? 0 : finisher + 1;
  };

  for (uint32_t turn = 0; turn < kStages; ++turn) fetch(turn);
  AwaitAllBut<kStages - 1>();
  begin_sums(0);
  AwaitAllBut<kStages - 2>();
  if (turns > 1) begin_sums(1);
  // The first scalars are wanted at once: every warp finishes them for itself.
  Gate gate = end_sums(0);
  if (threadIdx.x == 0) Arrive(&shared.gate_ready[0]);
  end_sums_for_all(1);
#pragma unroll 1
  for (uint32_t turn = 0; turn < turns; ++turn) {
    if (turn > 0) {
      AwaitPhase(&shared.gate_ready[turn % 2], turn / 2 % 2);
      gate = shared.gates[turn % 2];
    }
    AwaitAllBut<kStages - 3>();
    if (turn + 2 < turns) begin_sums(turn + 2);
    if (turn >= ahead) {
      const Stage& stage = shared.stages[turn % kStages];
      const Eight norm = LoadHalves(&shared.norm_conv[column]);
      if (turn == ahead) {
#pragma unroll
        for (int j = 0; j < kPast; ++j) {
          const uint32_t back = (j + 1) * args.dilation;
          if (back > item.local) continue;
          const uint32_t before = item.local - back;
          const float gr = Await(gates + uint64_t{before} * args.streams, header.stamp);
          past[j] = ConvRow(Widen(LoadHalves(kv + uint64_t{before} * kv_width + channels + column)), gr, norm);
        }
      }
      const uint32_t local = local_of(turn);
      const Eight v = Widen(LoadHalves(&stage.value[column]));
      const Eight x = ConvRow(v, gate.gr, norm);
      Eight out = Delta<kTaps>(taps, past, x, v, gate.g);
      if ((item.flags & kAddHighway) != 0) {
        const Eight q = highway(stage);
#pragma unroll
        for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
      }
      const uint64_t to = output + uint64_t{local} * (channels * output_size);
      if (output_bf16) {
        StoreHalves(reinterpret_cast<uint16_t*>(to), out);
      } else {
        StoreHalves(reinterpret_cast<float*>(to), out);
      }
      if (float* row = RingRow(args.carries, item, local); row != nullptr) StoreHalves(row + at + column, x);
#pragma unroll
      for (int j = kPast - 1; j > 0; --j) past[j] = past[j - 1];
      past[0] = x;
    }
    // All lanes have read what the copies replace.
    __syncwarp();
    fetch(turn + kStages);
    end_sums_for_all(turn + 2);
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
  config.blockDim = dim3(args.hidden / kColumns);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.early_start;
  return cudaLaunchKernelEx(&config, GateConvFast, args);
}

cudaError_t PrepareGateConvFast(GateConvSetup* setup, int* blocks_per_multiprocessor) {
  int device = 0;
  int room = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess || static_cast<size_t>(room) < sizeof(Shared)) return error;
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, GateConvFast);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(GateConvFast, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  }
  if (error != cudaSuccess) return error;
  setup->fast = 1;
  setup->early_start = attributes.ptxVersion >= 90 ? 1 : 0;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, GateConvFast, kMaxThreads,
                                                       sizeof(Shared));
}

}  // namespace pleiad::cuda
