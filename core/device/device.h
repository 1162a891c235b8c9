// A device that runs the PLE stage: arena, staging, carry pool, dense weights and one in-order stream.
// It is coarse on purpose: it runs whole batches, it is not a tensor library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/numeric.h"
#include "core/base/plan.h"
#include "core/base/strong_id.h"
#include "core/device/client_memory.h"
#include "core/model/geometry.h"
#include "core/model/layer_weights.h"
#include "core/model/ngram_hasher.h"

namespace pleiad {

// How rows of one layer are found where all of them stay in the arena: row r in slot first_slot + r.
struct RowHash {
  NgramHasher hasher;
  Slot first_slot;
};

struct DeviceOptions {
  Geometry geometry;
  DType row_dtype = DType::kBf16;   // of arena and staging: kBf16 or kF8E4M3
  std::vector<float> row_scales;    // [layers], of kF8E4M3 rows
  uint64_t arena_slots = 0;         // < GatherIndex::kLimit
  std::vector<RowHash> row_hashes;  // [layers], or empty where rows come and go
  uint32_t staging_rows = 0;
  uint32_t carries = 0;          // size of the carry pool, all layers together
  uint32_t rollback_tokens = 8;  // ring_rows = state_len + rollback_tokens
  uint32_t max_tokens = 8192;    // of one batch
  uint32_t threads = 0;          // CPU home; 0: all cores
  bool batch_invariant = false;  // one order of summation for any batch
  // Highest instruction set of the CPU GEMM, for tests: "", "portable", "avx2", "avx512", "avx512_bf16".
  std::string cpu_isa;
  uint32_t cuda_ordinal = 0;  // CUDA home: which GPU
  bool cuda_graphs = true;    // CUDA home: replay small batches as graphs
  // CUDA home, for measurements: time batches from their first kernel on, which costs each about a microsecond, and not
  // from where they could run.
  bool time_kernels = false;

  // InvalidArgument naming the field, its value and the rule.
  absl::Status Validate() const;
};

// Host rows that misses are read into: [rows, row_bytes], pinned where the device needs that. The device's.
struct StagingView {
  std::byte* data = nullptr;
  uint32_t rows = 0;
  uint32_t row_bytes = 0;
  std::byte* Row(uint32_t row) const { return data + uint64_t{row} * row_bytes; }
};

struct DeviceMemory {  // bytes, as allocated
  uint64_t arena = 0;
  uint64_t staging = 0;
  uint64_t carries = 0;
  uint64_t weights = 0;
  uint64_t scratch = 0;
  uint64_t pinned = 0;  // host memory that a GPU reads and writes, staging aside; 0 on the CPU
};

// Since the start.
struct DeviceStats {
  uint64_t batches = 0;           // of Run with tokens
  uint64_t graph_batches = 0;     // those of them replayed as a graph
  uint64_t capture_failures = 0;  // graphs that could not be made; their batches run launch by launch
  double busy_seconds = 0;        // in which batches that are done ran on the device or were next; 0: not known
};

// What a call of Run, ReadCarry or WriteCarry costs its caller.
enum class RunCost : uint8_t {
  kTheWork,     // it does what it is asked for; the caller is busy as long as that takes
  kEnqueueing,  // other hardware does it; the caller enqueues and at most copies tensors to where that reads them
};

struct DeviceInfo {
  std::string name;    // "cpu", "cuda:0"
  std::string detail;  // processor and GEMM path, for logs and metrics
  DeviceMemory memory;
  // Batches worth having enqueued at once: 1 where a batch that waits could still have grown.
  uint32_t pipeline_depth = 1;
  RunCost run_cost = RunCost::kTheWork;
  std::string gpu_uuid;      // of the GPU whose memory Import opens; empty where it opens none
  bool hashes_rows = false;  // plans may name tokens in place of slots: it has row_hashes and makes use of them
};

// Reads or writes the conv rows of one carry: `rows` is [state_len, C] FP32, oldest first.
struct CarryRead {
  CarrySlot carry;
  RingView ring;  // rows that do not exist read as zero
  float* rows = nullptr;
};
struct CarryWrite {
  CarrySlot carry;
  const float* rows = nullptr;  // stored so that RingView{state_len mod ring_rows, state_len} names them
};

// Run, ReadCarry and WriteCarry are called by one thread at a time, not always the same one, and only enqueue; what
// they point to stays valid and unchanged until Wait on their ticket has returned. Work runs in the order of the calls.
// Wait and IsDone may be called from other threads at the same time. After an error of Run or Wait the device is lost:
// every later call fails with Internal.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual DeviceStats stats() const = 0;
  virtual StagingView staging() const = 0;

  // Copies consecutive rows [n, row_bytes] into the arena from slot `first` on; blocks. Only before the first
  // Run, from any threads, at disjoint slots. InvalidArgument on a part of a row, OutOfRange past the arena.
  virtual absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) = 0;

  // Opens memory of another process; it may outlive the device. Blocks, from any threads, beside all other calls.
  // InvalidArgument naming the field, its value and the rule; ResourceExhausted; Unimplemented where gpu_uuid is empty.
  virtual absl::StatusOr<std::shared_ptr<ClientMemory>> Import(const ClientMemoryHandles& handles);
  // Holds the pages that bytes [offset, offset + bytes) of a file of memory have now, for parts of kPinned; what
  // becomes of the file does not matter to the device. `fd` stays the caller's, readable and writable. Blocks and
  // outlives as Import does. `until_released` is let go of when the
  // pages are. FailedPrecondition, ResourceExhausted; Unimplemented where the CPU does the work.
  virtual absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                                   std::shared_ptr<void> until_released);

  virtual absl::StatusOr<Ticket> Run(const BatchPlan& plan) = 0;
  virtual absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) = 0;
  virtual absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) = 0;

  // All rows of a carry as they lie, whether they exist or not: [ring_rows + state_len, C], the ring and then the undo
  // rows, oldest first. Both block. They are called while nothing that was enqueued is under way and nobody enqueues,
  // by one thread at a time. InvalidArgument on another number of values or a carry that there is none of.
  virtual absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) = 0;
  virtual absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) = 0;

  // Blocks until the ticket's work and all before it is done. Internal when the device is lost.
  virtual absl::Status Wait(Ticket ticket) = 0;
  // Whether Wait on the last ticket given would return soon, having nothing to wait for. Does not block; may say no
  // where it does not know.
  virtual bool IsDone(Ticket ticket) const {
    (void)ticket;
    return false;
  }
};

// `weights` [layers] move into the device. InvalidArgument on bad options, ResourceExhausted when memory cannot
// be had.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const DeviceOptions& options,
                                                        std::vector<LayerWeights> weights);

// The same; Unimplemented when built without CUDA, NotFound when there is no such GPU, no driver or no cuBLASLt.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions& options,
                                                         std::vector<LayerWeights> weights);

struct CudaGpu {
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};
// The statuses of CreateCudaDevice.
absl::StatusOr<CudaGpu> FindCudaGpu(uint32_t ordinal);

}  // namespace pleiad
