// gate_conv for four taps and streams of up to 2560 columns, a multiple of 256: the same work as gate_conv.cu, arranged
// so that memory waits little.
//
// A warp has 256 columns. Its lanes copy them to shared memory in 16-byte pieces side by side, some tokens ahead; then
// lane i works on columns 4i to 4i + 3 of either half, so that FP32 goes in and out 16 bytes a lane, side by side too.
// A token's sums are begun three tokens before its conv and finished by one warp in turn; warps wait for one another
// only where these two hand over. Tokens whose scalars the next item of the chain needs come first,
// for their scalars alone.
#include "core/device/cuda/async_copy.cuh"
#include "core/device/cuda/block_sums.cuh"
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/gate_conv.cuh"
#include "core/device/cuda/halves.cuh"

namespace pleiad::cuda {
namespace {

constexpr uint32_t kMaxThreads = kFastHidden / kColumns;
constexpr uint32_t kStages = 5;
constexpr uint32_t kLead = 3;  // turns from where a token's sums begin to its conv
// A token's key is done with where its sums begin.
constexpr uint32_t kKeys = kStages - kLead;
// Of what the warps hand over: more turns than any two of them are apart.
constexpr uint32_t kHanded = 4;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;

// Rows of one token and stream, as in memory.
struct Stage {
  uint16_t value[kFastHidden];
  float highway[kFastHidden];  // or BF16 in the first half of each warp's bytes
};

struct Shared {
  Stage stages[kStages];
  uint16_t keys[kKeys][kFastHidden];
  float norm_key_query[kFastHidden];
  float norm_conv[kFastHidden];
  float4 sums[kHanded][kMaxThreads / 32];
  Gate gates[kHanded];
  Gate known[kTaps - 1];         // of tokens handed on, for when their own turn comes
  uint64_t sums_ready[kHanded];  // mbarriers: all warps have begun a token's sums
  uint64_t gate_ready[kHanded];  // one warp has finished them
};

// kUsual: FP32 in and out, and the output is the highway.
template <bool kUsual>
__device__ __forceinline__ void WorkOn(const GateConvArgs& args, const PlanHeader& header, const ChainItem& item,
                                       Shared& shared) {
  const uint32_t stream = blockIdx.x % args.streams;
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

  const bool add_highway = kUsual || (item.flags & kAddHighway) != 0;
  const bool input_bf16 = !kUsual && (item.flags & kInputBf16) != 0;
  const bool output_bf16 = !kUsual && (item.flags & kOutputBf16) != 0;
  const bool spread = (item.flags & kSpread) != 0;
  const uint32_t input_row = channels * (spread || !input_bf16 ? 4 : 2);  // bytes
  const uint32_t output_row = channels * (spread || !output_bf16 ? 4 : 2);
  const uint64_t input = item.input + input_row / args.streams * stream + (input_bf16 ? eight * 2 : column * 4);
  const uint64_t output = item.output + output_row / args.streams * stream + column * (output_bf16 ? 2 : 4);
  const uint16_t* const kv = args.key_value + uint64_t{item.first_token} * kv_width;
  if (item.input == 0) {
    for (Stage& stage : shared.stages) {
      for (uint32_t i = lane; i < 2 * kHalf; i += 32) stage.highway[share + i] = 0;
    }
    __syncwarp();
  }

  // Turns: the tokens whose scalars are handed on, then all tokens of the item.
  const bool followed = item.local + item.count * args.dilation < item.num_tokens;
  const uint32_t ahead = followed ? min(kPast, static_cast<int>(item.count) - 1) : 0;
  const uint32_t turns = ahead + item.count;
  const uint32_t unknown = turns - ahead;  // turns that need their sums: those at the end had them ahead
  const auto local_of = [&](uint32_t turn) {
    return item.local + (turn < ahead ? item.count - ahead + turn : turn - ahead) * args.dilation;
  };
  const auto fetch_highway = [&](uint32_t turn, uint32_t place) {
    if (item.input == 0) return;
    Stage& stage = shared.stages[place];
    const uint64_t from = input + uint64_t{local_of(turn)} * input_row;
    if (input_bf16) {
      CopyAsync(reinterpret_cast<uint16_t*>(&stage.highway[share]) + 8 * lane, reinterpret_cast<void*>(from));
    } else {
      CopyAsync(&stage.highway[column], reinterpret_cast<const float*>(from));
      CopyAsync(&stage.highway[column + kHalf], reinterpret_cast<const float*>(from) + kHalf);
    }
  };
  const auto fetch_key_value = [&](uint32_t turn, uint32_t place, uint32_t key) {
    const uint16_t* row = kv + uint64_t{local_of(turn)} * kv_width + eight;
    if (turn < unknown) CopyAsync(&shared.keys[key][eight], row + at);
    CopyAsync(&shared.stages[place].value[eight], row + channels);
  };
  const auto highway = [&](const Stage& stage) {
    if (input_bf16) {
      return Widen(LoadHalves(reinterpret_cast<const uint16_t*>(&stage.highway[share]) + 4 * lane));
    }
    return LoadHalves(&stage.highway[column]);
  };
#pragma unroll 1
  for (uint32_t turn = 0; turn < min(kStages, turns); ++turn) fetch_highway(turn, turn);
  // Undo rows may still be on their way. What the projection writes is read behind the wait alone.
  if (header.num_moves != 0) AwaitKernelBefore();
  ChainGate* const gates = args.gates + uint64_t{item.first_token} * args.streams + stream;
  // Rows before the item's first token: of this batch, of the steps before, or none. past[j] lies j + 1 dilations back.
  const auto load_past = [&](bool in_batch, Eight(&past)[kPast]) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const uint32_t back = (j + 1) * args.dilation;
      past[j] = Eight{};
      if (in_batch && back <= item.local) {
        const uint32_t before = item.local - back;
        const float gr = Await(gates + uint64_t{before} * args.streams, header.stamp);
        past[j] = ConvRow(Widen(LoadHalves(kv + uint64_t{before} * kv_width + channels + column)), gr,
                          LoadHalves(&shared.norm_conv[column]));
      } else if (const float* row = CarryRow(args.carries, item, back); row != nullptr) {
        past[j] = LoadHalves(row + at + column);
      }
    }
  };
  const bool first_of_chain = item.local < args.dilation;
  Eight carried[kPast] = {};
  if (first_of_chain) load_past(false, carried);
  AwaitKernelBefore();

  // From this token on rows are kept.
  const uint32_t kept = (item.flags & kHasCarry) == 0              ? 0xFFFFFFFFu
                        : item.num_tokens > args.carries.ring_rows ? item.num_tokens - args.carries.ring_rows
                                                                   : 0;
  // A key's place is free again when its sums have begun, so later keys wait for that.
#pragma unroll 1
  for (uint32_t turn = 0; turn < kKeys; ++turn) {
    if (turn < turns) fetch_key_value(turn, turn, turn);
    Commit();
  }
  ConvSums<kTaps> conv(taps, carried);
  // Sums of turn i begin, and the output of turn i - kLead is made.
  uint32_t next = 0;                 // where the rows of turn i lie
  uint32_t key = 0;                  // and its key, and then that kKeys turns on
  uint32_t place = kStages - kLead;  // of the rows of turn i - kLead, and then of those kStages turns on
  uint32_t finished = warp;          // the turn whose sums this warp finishes
#pragma unroll 1
  for (uint32_t i = 0; i < turns + kLead; ++i) {
    const uint32_t turn = i - kLead;
    Gate gate{};
    if (i >= kLead) {
      if (turn < unknown) AwaitPhase(&shared.gate_ready[turn % kHanded], turn / kHanded & 1);
      // Read by a lane that arrives with the next sums, which whoever overwrites it waits for.
      if (lane == 0) gate = turn < unknown ? shared.gates[turn % kHanded] : shared.known[turn - unknown];
      gate.g = __shfl_sync(0xFFFFFFFFu, gate.g, 0);
      gate.gr = __shfl_sync(0xFFFFFFFFu, gate.gr, 0);
    }
    AwaitAllBut<kKeys - 1>();
    if (i < unknown) {
      const Eight k = Widen(LoadHalves(&shared.keys[key][column]));
      const Eight v = Widen(LoadHalves(&shared.stages[next].value[column]));
      const Eight q = highway(shared.stages[next]);
      const Eight norm = LoadHalves(&shared.norm_key_query[column]);
      if (WarpSums(GateParts(k, q, v, norm), shared.sums[i % kHanded])) Arrive(&shared.sums_ready[i % kHanded]);
    }
    if (i >= ahead + kLead) {
      if (i == ahead + kLead && !first_of_chain) {
        Eight past[kPast];
        load_past(true, past);
        conv = ConvSums<kTaps>(taps, past);
      }
      const Stage& stage = shared.stages[place];
      const uint32_t local = local_of(turn);
      const Eight v = Widen(LoadHalves(&stage.value[column]));
      const Eight x = ConvRow(v, gate.gr, LoadHalves(&shared.norm_conv[column]));
      Eight out = Delta(conv.Take(taps, x), v, gate.g);
      if (add_highway) {
        const Eight q = highway(stage);
#pragma unroll
        for (uint32_t e = 0; e < kColumns; ++e) out.v[e] = q.v[e] + out.v[e];
      }
      const uint64_t to = output + uint64_t{local} * output_row;
      if (output_bf16) {
        StoreHalves(reinterpret_cast<uint16_t*>(to), out);
      } else {
        StoreHalves(reinterpret_cast<float*>(to), out);
      }
      if (local >= kept) StoreHalves(RingRow(args.carries, item, local) + at + column, x);
    }
    // All lanes have read what the copies replace.
    __syncwarp();
    if (i + kKeys < turns) {
      if (i >= kLead) fetch_highway(i + kKeys, place);
      fetch_key_value(i + kKeys, place, key);
    }
    Commit();
    next = next + 1 == kStages ? 0 : next + 1;
    place = place + 1 == kStages ? 0 : place + 1;
    key = key + 1 == kKeys ? 0 : key + 1;
    // Warps finish sums in turn. Nobody overwrites these, nor the scalars they become, before all have read them: what
    // would needs sums that every warp begins later than it reads.
    if (i == finished && i < unknown) {
      finished += warps;
      AwaitPhase(&shared.sums_ready[i % kHanded], i / kHanded & 1);
      const Gate ended = GateOf(SumsOfWarpsBelow(shared.sums[i % kHanded], warps), args);
      if (lane == 0) {
        shared.gates[i % kHanded] = ended;
        if (i < ahead) shared.known[i] = ended;
      }
      // Each has read sums that its arrival lets others overwrite.
      if (lane < kReaders) Arrive(&shared.gate_ready[i % kHanded]);
      if (lane == 0) {
        if (followed && (i < ahead || (i == ahead && item.count <= kPast))) {
          Publish(gates + uint64_t{local_of(i)} * args.streams, ended.gr, header.stamp);
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads, 2) GateConvFast(const GateConvArgs args) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  // Both at once: the list has room for every block.
  const PlanHeader header = *args.header;
  const ChainItem item = args.items[blockIdx.x / args.streams];
  if (blockIdx.x / args.streams >= header.num_items) return;
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.sums_ready) InitBarrier(&barrier, args.hidden / (2 * kHalf) * kSumsOfWarp);
    for (uint64_t& barrier : shared.gate_ready) InitBarrier(&barrier, kReaders);
  }
  __syncthreads();
  if ((item.flags & (kInputBf16 | kOutputBf16 | kAddHighway)) == kAddHighway && item.input != 0) {
    WorkOn<true>(args, header, item, shared);
  } else {
    WorkOn<false>(args, header, item, shared);
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
