// project_rows: gather and projection of up to 64 tokens in one kernel, for decode: the time to read the weights once,
// with no launch, no gap and no scratch between the two. For sm_90a alone: elsewhere its body is empty.
//
// A cluster of two blocks has an even share of the outputs, and each block half of E, so that it reads half of the
// tokens' rows: all blocks together read them often enough for the L2 cache to be what limits. A block walks along its
// half in chunks of 64. Its producers copy the chunk's weights and the tokens' rows, the latter straight from arena and
// staging, 16 bytes at a time to a ring of stages in shared memory, as far ahead as there are stages. Two warpgroups of
// consumers each multiply 128 outputs with all tokens on the tensor cores. Stages are handed over and back by
// mbarriers. In the end each block hands one warpgroup's sums to the other block and finishes those of its other one.
//
// An output's sum has one order, whatever tokens are in the batch.
#include <cuda_bf16.h>

#include "core/device/cuda/async_copy.cuh"
#include "core/device/cuda/columns.cuh"
#include "core/device/cuda/conv_rows.cuh"
#include "core/device/cuda/gather.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PLEIAD_WGMMA 1
#endif

namespace pleiad::cuda {
namespace {

constexpr uint32_t kConsumers = 256;
constexpr uint32_t kProducers = 256;
constexpr uint32_t kThreads = kConsumers + kProducers;
constexpr uint32_t kGroup = 128;    // threads of a warpgroup
constexpr uint32_t kBlocks = 2;     // of a cluster
constexpr uint32_t kOutputs = 208;  // of a cluster, at most; two tiles a warpgroup have room for more
constexpr uint32_t kChunk = 64;     // along E: 128 bytes, a row of the swizzled layout
constexpr uint32_t kStages = 5;

#ifdef PLEIAD_WGMMA
constexpr uint32_t kTile = 64;  // outputs of one multiplication
constexpr uint32_t kGroupOutputs = 2 * kTile;
constexpr uint32_t kPieces = kChunk / 8;  // of 16 bytes
constexpr uint32_t kLines = kProducers / kPieces;
constexpr uint32_t kEarly = 3;  // chunks
constexpr uint32_t kNoRow = 0xFFFFFFFFu;

// Of the one warpgroup that ends the block.
__device__ void SyncGroup() { asm volatile("bar.sync 1, %0;" ::"n"(kGroup) : "memory"); }

// Barriers of all threads of the cluster that have not ended.
__device__ void ArriveAtCluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void AwaitCluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// To the same place of another block's shared memory.
__device__ void StoreAt(uint32_t block, uint32_t address, float4 value) {
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};}" ::"r"(address),
      "r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

// Rows of 128 bytes side by side, whose 16-byte pieces are swizzled by the row's number modulo 8.
__device__ uint64_t MatrixDescriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}

__device__ void BeginMultiply() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void CommitMultiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// The products but the last have been made.
__device__ void AwaitMultiplyBefore() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// The sums may be touched again.
template <uint32_t kTiles, uint32_t kCount>
__device__ void AwaitMultiply(float (&sums)[kTiles][kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (uint32_t i = 0; i < kTiles * kCount; ++i) asm volatile("" : "+f"(sums[i / kCount][i % kCount])::"memory");
}

// sums[64 outputs, tokens] += a[64, 16] * b[tokens, 16]
__device__ void Multiply(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b));
}
__device__ void Multiply(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}
__device__ void Multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, "
      "1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}
#endif

template <uint32_t kTokens>
struct Stage {
  uint16_t weights[kOutputs][kChunk];
  uint16_t rows[kTokens][kChunk];
};

template <uint32_t kTokens>
struct Shared {
  Stage<kTokens> stages[kStages];      // aligned to 1024 bytes, as the swizzle wants it
  float4 handed[kTokens / 4][kGroup];  // the other block's sums, and then what goes out
  uint32_t rows[];                     // [kTokens, heads]
};

template <uint32_t kTokens>
__global__ void __launch_bounds__(kThreads, kTokens < 64 ? 2 : 1) ProjectRows(const ProjectRowsArgs args) {
#ifdef PLEIAD_WGMMA
  extern __shared__ uint4 memory[];
  auto* const base = reinterpret_cast<std::byte*>(memory) + (-SharedAddress(memory) & 1023);
  auto& shared = *reinterpret_cast<Shared<kTokens>*>(base);
  // Static, which also tells the host that this body is there.
  __shared__ uint64_t full[kStages];
  __shared__ uint64_t empty[kStages];
  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      InitBarrier(&full[i], kProducers);
      InitBarrier(&empty[i], kConsumers / 32);
    }
  }
  __syncthreads();
  ArriveAtCluster();  // it has begun, so the other block may write to its memory
  const uint32_t rank = blockIdx.x % kBlocks;
  const uint32_t clusters = gridDim.x / kBlocks;
  const uint32_t cluster = blockIdx.x / kBlocks;
  const uint32_t eights = args.outputs / 8;
  const uint32_t first_output = 8 * (cluster * eights / clusters);
  const uint32_t outputs = 8 * ((cluster + 1) * eights / clusters) - first_output;
  const uint32_t all_chunks = (args.embed + kChunk - 1) / kChunk;
  const uint32_t half = (all_chunks + 1) / 2;
  const uint32_t first_chunk = rank * half;
  const uint32_t chunks = rank == 0 ? half : all_chunks - half;
  const uint32_t heads = args.embed / args.gather.head_dim;

  if (threadIdx.x >= kConsumers) {
    const uint32_t thread = threadIdx.x - kConsumers;
    const uint32_t piece = thread % kPieces;
    const uint32_t line = thread / kPieces;
    const uint32_t swizzled = line * kChunk * 2 + (piece ^ line % 8) * 16;  // in bytes; lines go on by multiples of 8
    const uint32_t begin = first_chunk * kChunk + piece * 8;                // along E
    const uint16_t* const weights = args.weights + uint64_t{first_output + line} * args.embed + begin;
    const auto fetch_weights = [&](uint32_t chunk) {
      const uint32_t to = SharedAddress(shared.stages[chunk % kStages].weights) + swizzled;
      const uint32_t bytes = begin + chunk * kChunk < args.embed ? 16 : 0;
      const uint16_t* from = weights + chunk * kChunk;
#pragma unroll
      for (uint32_t i = 0; i < (kOutputs + kLines - 1) / kLines; ++i) {
        if (line + i * kLines < outputs) {
          CopyAsync(to + i * kLines * kChunk * 2, from + uint64_t{i * kLines} * args.embed, bytes);
        }
      }
    };
    // Chunk after chunk.
    uint32_t head = 0;
    uint32_t at = begin;  // of the head's row
    const auto fetch_rows = [&](uint32_t chunk) {
      for (; at >= args.gather.head_dim; at -= args.gather.head_dim) ++head;
      const uint32_t to = SharedAddress(shared.stages[chunk % kStages].rows) + swizzled;
#pragma unroll
      for (uint32_t i = 0; i < (kTokens + kLines - 1) / kLines; ++i) {
        if (line + i * kLines >= kTokens) break;
        const uint32_t row = head < heads ? shared.rows[(line + i * kLines) * heads + head] : kNoRow;
        const void* from =
            row == kNoRow ? static_cast<const void*>(args.weights) : RowPiece<false>(args.gather, row, at);
        CopyAsync(to + i * kLines * kChunk * 2, from, row == kNoRow ? 0 : 16);
      }
      at += kChunk;
    };
    // The first weights are asked for while the list of rows is on its way.
    const uint32_t early = min(kEarly, chunks);
    for (uint32_t chunk = 0; chunk < early; ++chunk) fetch_weights(chunk);
    AwaitCluster();
    __syncthreads();
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk >= kStages) AwaitPhase(&empty[chunk % kStages], chunk / kStages + 1 & 1);
      if (chunk >= early) fetch_weights(chunk);
      fetch_rows(chunk);
      ArriveAfterCopies(&full[chunk % kStages]);
    }
    return;
  }
  const PlanHeader header = *args.gather.header;
  for (uint32_t i = threadIdx.x; i < kTokens * heads; i += kConsumers) {
    const uint32_t row = args.gather.rows[min(i, args.gather.max_rows - 1)];
    shared.rows[i] = i < header.num_rows ? row : kNoRow;
  }
  AwaitCluster();
  __syncthreads();
  // Nothing in this launch reads what they move.
  if (header.num_moves != 0) MoveUndoRows(args.gather.moves, header.num_moves, args.gather.carries, kConsumers);

  const uint32_t group = threadIdx.x / kGroup;
  const uint32_t thread = threadIdx.x % kGroup;
  const uint32_t lane = threadIdx.x % 32;
  // Tiles that reach past the outputs multiply what lies there; nobody looks at those sums.
  float sums[2][kTokens / 2] = {};
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    AwaitPhase(&full[chunk % kStages], chunk / kStages & 1);
    // What the producers' copies wrote is read by the tensor cores.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const Stage<kTokens>& stage = shared.stages[chunk % kStages];
    const uint64_t a = MatrixDescriptor(SharedAddress(stage.weights[kGroupOutputs * group]));
    const uint64_t next = MatrixDescriptor(SharedAddress(stage.weights[kGroupOutputs * group + kTile]));
    const uint64_t b = MatrixDescriptor(SharedAddress(stage.rows));
    BeginMultiply();
#pragma unroll
    for (uint32_t k = 0; k < kChunk / 16; ++k) {
      Multiply(sums[0], a + 2 * k, b + 2 * k);
      Multiply(sums[1], next + 2 * k, b + 2 * k);
    }
    CommitMultiply();
    AwaitMultiplyBefore();
    if (chunk > 0 && lane == 0) Arrive(&empty[(chunk - 1) % kStages]);
  }
  AwaitMultiply(sums);

  // The block of a group's number ends that group's outputs.
  if (group != rank) {
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 4; ++i) {
      const float* from = sums[i / (kTokens / 8)] + i % (kTokens / 8) * 4;
      StoreAt(group, SharedAddress(&shared.handed[i][thread]), {from[0], from[1], from[2], from[3]});
    }
  }
  ArriveAtCluster();
  AwaitCluster();
  if (group != rank) return;
#pragma unroll
  for (uint32_t i = 0; i < kTokens / 4; ++i) {
    float* to = sums[i / (kTokens / 8)] + i % (kTokens / 8) * 4;
    const float4 other = shared.handed[i][thread];
    to[0] += other.x;
    to[1] += other.y;
    to[2] += other.z;
    to[3] += other.w;
  }
  SyncGroup();

  // To rows of BF16. A thread has two outputs, 8 apart, of pairs of tokens.
  constexpr uint32_t kPitch = kGroupOutputs + 8;
  auto* const out = reinterpret_cast<uint16_t*>(shared.handed);  // [kTokens, kPitch]
  static_assert(sizeof(shared.handed) >= kTokens * kPitch * sizeof(uint16_t));
#pragma unroll
  for (uint32_t tile = 0; tile < 2; ++tile) {
    const uint32_t output = tile * kTile + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 8; ++i) {
      uint16_t* to = out + (8 * i + lane % 4 * 2) * kPitch + output;
      const uint32_t low = RoundPair(sums[tile][4 * i], sums[tile][4 * i + 1]);
      const uint32_t high = RoundPair(sums[tile][4 * i + 2], sums[tile][4 * i + 3]);
      to[0] = static_cast<uint16_t>(low);
      to[kPitch] = static_cast<uint16_t>(low >> 16);
      to[8] = static_cast<uint16_t>(high);
      to[kPitch + 8] = static_cast<uint16_t>(high >> 16);
    }
  }
  SyncGroup();
  const uint32_t before = kGroupOutputs * group;
  const uint32_t per_token = outputs > before ? min(outputs - before, kGroupOutputs) / 8 : 0;
  for (uint32_t i = thread; i < args.tokens * per_token; i += kGroup) {
    const uint32_t token = i / per_token;
    const uint32_t at = i % per_token * 8;
    *reinterpret_cast<uint4*>(args.out + uint64_t{token} * args.outputs + first_output + before + at) =
        *reinterpret_cast<const uint4*>(out + token * kPitch + at);
  }
#endif
}

// As many as run at once, or more where that makes too many outputs for one.
uint32_t Clusters(uint32_t outputs, uint32_t multiprocessors) {
  return max(min(outputs / 8, multiprocessors / kBlocks), (outputs + kOutputs - 1) / kOutputs);
}

template <uint32_t kTokens>
size_t SharedBytes(uint32_t heads) {
  return 1024 + sizeof(Shared<kTokens>) + size_t{kTokens} * heads * sizeof(uint32_t);
}

template <uint32_t kTokens>
cudaError_t Launch(const ProjectRowsArgs& args, uint32_t multiprocessors, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kBlocks;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks * Clusters(args.outputs, multiprocessors));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = SharedBytes<kTokens>(args.embed / args.gather.head_dim);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, ProjectRows<kTokens>, args);
}

template <uint32_t kTokens>
cudaError_t Prepare(uint32_t heads, size_t room, uint32_t* max_tokens) {
  const size_t shared = SharedBytes<kTokens>(heads);
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, ProjectRows<kTokens>);
  if (error != cudaSuccess || attributes.sharedSizeBytes == 0 || attributes.sharedSizeBytes + shared > room) {
    return error;
  }
  error =
      cudaFuncSetAttribute(ProjectRows<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error == cudaSuccess) *max_tokens = kTokens;
  return error;
}

}  // namespace

cudaError_t LaunchProjectRows(const ProjectRowsArgs& args, uint32_t multiprocessors, cudaStream_t stream) {
  if (args.tokens <= 16) return Launch<16>(args, multiprocessors, stream);
  if (args.tokens <= 32) return Launch<32>(args, multiprocessors, stream);
  return Launch<64>(args, multiprocessors, stream);
}

cudaError_t PrepareProjectRows(uint32_t outputs, uint32_t embed, uint32_t head_dim, uint32_t* max_tokens) {
  *max_tokens = 0;
  if (outputs % 8 != 0 || embed % 8 != 0 || head_dim % 8 != 0) return cudaSuccess;
  int device = 0;
  int room = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  int multiprocessors = 0;
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  // All at once, or the gather and a matrix product are faster.
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<uint32_t>(multiprocessors);
  if (kBlocks * Clusters(outputs, blocks) > blocks) return cudaSuccess;
  const uint32_t heads = embed / head_dim;
  error = Prepare<16>(heads, static_cast<size_t>(room), max_tokens);
  if (error == cudaSuccess && *max_tokens == 16) error = Prepare<32>(heads, static_cast<size_t>(room), max_tokens);
  if (error == cudaSuccess && *max_tokens == 32) error = Prepare<64>(heads, static_cast<size_t>(room), max_tokens);
  return error;
}

}  // namespace pleiad::cuda
