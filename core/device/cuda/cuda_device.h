// The CUDA home: one compute stream carries all work in order; rows and inputs are uploaded and outputs downloaded on
// streams beside it. See device.h for the contract.
//
// Run never waits while at most kSlots batches are in flight; one more waits for the oldest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "core/device/cuda/batch_slot.h"
#include "core/device/cuda/carry_io.h"
#include "core/device/cuda/key_value_gemm.h"
#include "core/device/cuda/layer_memory.h"
#include "core/device/cuda/owners.h"
#include "core/device/cuda/row_hashes.h"
#include "core/device/device.h"
#include "core/device/import_table.h"

namespace pleiad::cuda {

class CudaDevice : public Device {
 public:
  static constexpr uint32_t kSlots = 2;
  // Batches up to this are replayed as graphs, padded to the next power of two.
  static constexpr uint32_t kGraphTokens = TensorStaging::kMappedTokens;

  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceOptions& options,
                                                        std::vector<LayerWeights> weights);
  // Finishes what is enqueued.
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override ABSL_LOCKS_EXCLUDED(mutex_);
  StagingView staging() const override;
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override;
  absl::StatusOr<std::shared_ptr<ClientMemory>> Import(const ClientMemoryHandles& handles) override;
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                           std::shared_ptr<void> until_released) override;
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Wait(Ticket ticket) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(Ticket ticket) const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr uint32_t kNone = ~0u;

  // Enqueued and not yet seen done, in the order of tickets.
  struct Work {
    Ticket ticket;
    cudaEvent_t done = nullptr;
    uint32_t slot = kNone;        // of a batch
    cudaEvent_t begun = nullptr;  // where its time starts, unless the batch before ends later
    cudaEvent_t computed = nullptr;
    cudaEvent_t before = nullptr;  // what `computed` was of the batch before
    uint32_t place = kNone;        // of a carry
    float* rows = nullptr;         // where a carry that is read goes
  };
  enum class BatchPath { kGraph, kLaunches };
  // What launches are sized for; the plan says what there is.
  struct StageSizes {
    uint32_t tokens;
    uint32_t items;
    uint32_t moves;
    PlanRows rows = PlanRows::kPlaces;
  };

  explicit CudaDevice(const DeviceOptions& options);

  absl::Status Start(std::vector<LayerWeights> weights);
  absl::Status AllocateRows();
  absl::Status AllocateStage();
  void CaptureGraphs();
  absl::StatusOr<GraphExec> Capture(BatchSlot& slot, LayerOrdinal layer, uint32_t tokens);
  void Describe();

  absl::Status UseGpu() const;
  absl::Status Lose(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status lost() const ABSL_LOCKS_EXCLUDED(mutex_);
  Ticket Push(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Retire(const Work& work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a batch that is done; see DeviceStats::busy_seconds.
  absl::StatusOr<double> BusySeconds(const Work& work) const;

  absl::Status CheckBatch(const BatchPlan& plan) const;
  absl::Status Enqueue(const BatchPlan& plan, BatchSlot& slot, Work* work);
  // Tells the clients whose memory the batch uses.
  void RecordDone(const BatchPlan& plan) const;
  // The image of `plan` and what it refers to, ahead of the stage.
  absl::Status EnqueueUploads(const BatchPlan& plan, const PlanImageLayout& layout, const PlanImageCounts& counts,
                              BatchSlot& slot) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing is enqueued that was not seen done.
  bool IsIdle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The stage of a batch whose image is in place.
  absl::Status EnqueueStage(const BatchSlot& slot, LayerOrdinal layer, const PlanImageLayout& layout,
                            const StageSizes& sizes);
  absl::Status EnqueueProjection(const BatchSlot& slot, LayerOrdinal layer, const PlanImageLayout& layout,
                                 const StageSizes& sizes);
  // Whether gather and projection of a batch are one kernel: for few tokens, which does no undo moves, or for more.
  bool ProjectsFew(uint32_t tokens) const;
  bool ProjectsRows(uint32_t tokens) const;
  GatherArgs GatherFrom(const BatchSlot& slot, const PlanImageLayout& layout, LayerOrdinal layer, uint32_t tokens,
                        PlanRows rows) const;
  // Null: none.
  cudaGraphExec_t FindGraph(const BatchSlot& slot, LayerOrdinal layer, uint32_t tokens) const;
  // All rows of a carry to `out` or, where that is null, from `in`; blocks.
  absl::Status CopyWholeCarry(CarrySlot carry, size_t values, float* out, const float* in) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EnqueueReadCarry(const CarryRead& read, Work* work);
  absl::Status EnqueueWriteCarry(const CarryWrite& write, Work* work);

  const DeviceOptions options_;
  DeviceInfo info_;
  PlanShape shape_;
  uint32_t row_bytes_ = 0;
  uint32_t scratch_tokens_ = 0;
  GateConvSetup gate_conv_;
  uint32_t multiprocessors_ = 0;
  uint32_t project_rows_tokens_ = 0;  // the most that LaunchProjectRows takes
  std::string capture_error_;
  std::shared_ptr<ImportTable> imports_;  // null: none

  // Read by Run alone after Start; memory of the device is written by its streams.
  Stream compute_;
  Stream upload_;
  Stream download_;
  std::vector<LayerMemory> layers_;
  DeviceMemoryBlock arena_;
  PinnedMemoryBlock staging_;
  DeviceMemoryBlock device_staging_;
  DeviceMemoryBlock carry_rows_;
  DeviceMemoryBlock embeddings_;  // BF16 [scratch_tokens, E]
  DeviceMemoryBlock key_value_;   // BF16 [scratch_tokens, C + H]
  DeviceMemoryBlock gates_;       // ChainGate [scratch_tokens, hc]
  CarryMemory carries_;
  RowHashes hashes_;
  std::unique_ptr<KeyValueGemm> gemm_;
  CarryIo carry_io_;
  std::array<BatchSlot, kSlots> slots_;
  uint32_t next_slot_ = 0;
  uint32_t stamp_ = 0;
  cudaEvent_t last_computed_ = nullptr;
  ThreadPool copy_in_;
  ThreadPool copy_out_;  // used by whoever retires

  mutable Mutex mutex_;
  CondVar retired_cv_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  bool retiring_ ABSL_GUARDED_BY(mutex_) = false;
  Ticket last_ ABSL_GUARDED_BY(mutex_);
  Ticket done_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  DeviceStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::cuda
