// The tensors of one batch on their way between host memory and the device.
//
// Host tensors go through one pinned block, and for long batches through a twin on the device: a token's row has
// C * 4 bytes there, whatever its dtype, and the output takes the input's place. Short batches are read and written by
// the kernels in the pinned block itself: each byte crosses once either way. Device tensors stay where they are. Those
// in pages that a client shares are used as the pinned block is, and by no copy of the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/plan.h"
#include "core/base/thread_pool.h"
#include "core/device/cuda/owners.h"
#include "core/device/cuda/plan_image.h"

namespace pleiad::cuda {

class TensorStaging {
 public:
  // Batches up to this go without the twin: beyond, copy engines move the bytes while other batches run.
  static constexpr uint32_t kMappedTokens = 64;

  // Room for `max_tokens`. ResourceExhausted when memory cannot be had.
  static absl::StatusOr<TensorStaging> Create(const Geometry& geometry, uint32_t max_tokens);

  // Copies host inputs into the pinned block, on the threads of `pool`, and says where the kernels find the parts.
  absl::Span<const PartAddress> Begin(const BatchPlan& plan, ThreadPool& pool);
  // Inputs to the twin. Nothing for short batches.
  absl::Status EnqueueInputs(cudaStream_t stream);
  // Outputs from the twin.
  absl::Status EnqueueOutputs(cudaStream_t stream);
  // The stream behind EnqueueOutputs is done: copies outputs to where the plan wants them.
  void Finish(ThreadPool& pool);

  // For batches that only gather: the BF16 rows [T, E], for EnqueueOutputs and Finish.
  uint16_t* BeginEmbeddings(const BatchPlan& plan);

  bool has_inputs() const { return !inputs_.empty() || !pinned_in_.empty(); }
  bool has_outputs() const { return !outputs_.empty() || !pinned_out_.empty(); }
  uint64_t pinned_bytes() const { return pinned_.size(); }
  uint64_t device_bytes() const { return device_.size(); }

 private:
  // A piece of a host tensor and where it lies in the blocks.
  struct Piece {
    std::byte* host;
    uint64_t offset;
    uint64_t bytes;
  };
  struct Range {
    uint64_t offset;
    uint64_t bytes;
  };
  // A tensor in pages of a client, and where it lies in the twin: `rows` rows of `row_bytes`, there `stride` apart.
  struct PinnedTensor {
    std::byte* host;
    uint64_t offset;
    uint64_t rows;
    uint64_t row_bytes;
    uint64_t stride;
  };

  void AddPart(const TensorPart& part);
  void AddPinned(const TensorPart& part, bool spread, uint64_t offset);
  static absl::Status CopyRows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride,
                               const PinnedTensor& tensor, cudaMemcpyKind kind, cudaStream_t stream);
  static void AddRange(std::vector<Range>* ranges, uint64_t offset, uint64_t bytes);
  static void AddPieces(std::vector<Piece>* pieces, std::byte* host, uint64_t offset, uint64_t bytes);
  // `rows` rows of a part's input, one behind the other, each to its place, `stride` from the last.
  void AddInput(const TensorPart& part, uint64_t rows, uint64_t row_bytes, uint64_t offset, uint64_t stride);

  uint32_t hidden_ = 0;
  uint32_t streams_ = 0;
  uint32_t embed_ = 0;
  PinnedMemoryBlock pinned_;
  DeviceMemoryBlock device_;

  std::byte* kernel_base_ = nullptr;  // of the block the kernels use in this batch
  std::vector<PartAddress> addresses_;
  std::vector<Piece> copies_in_;
  std::vector<Piece> copies_out_;
  std::vector<Range> inputs_;  // empty for short batches
  std::vector<Range> outputs_;
  std::vector<PinnedTensor> pinned_in_;  // likewise
  std::vector<PinnedTensor> pinned_out_;
};

}  // namespace pleiad::cuda
