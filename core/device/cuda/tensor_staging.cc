#include "core/device/cuda/tensor_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace pleiad::cuda {
namespace {

// A copy is shared among threads in pieces of this size.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

}  // namespace

absl::StatusOr<TensorStaging> TensorStaging::Create(const Geometry& geometry, uint32_t max_tokens) {
  TensorStaging staging;
  staging.hidden_ = geometry.hidden_size;
  staging.streams_ = geometry.hc_count;
  staging.embed_ = geometry.embed_dim;
  const uint64_t row =
      std::max<uint64_t>(uint64_t{geometry.channels()} * sizeof(float), uint64_t{geometry.embed_dim} * sizeof(Bf16));
  const uint64_t bytes = max_tokens * row;
  PLEIAD_ASSIGN_OR_RETURN(staging.pinned_, AllocatePinned("pinned tensors", bytes));
  // Gathered rows alone use the twin in short batches too.
  PLEIAD_ASSIGN_OR_RETURN(staging.device_, AllocateDevice("device tensors", bytes));
  return staging;
}

void TensorStaging::AddRange(std::vector<Range>* ranges, uint64_t offset, uint64_t bytes) {
  if (!ranges->empty() && ranges->back().offset + ranges->back().bytes == offset) {
    ranges->back().bytes += bytes;
  } else {
    ranges->push_back({offset, bytes});
  }
}

void TensorStaging::AddPieces(std::vector<Piece>* pieces, std::byte* host, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    pieces->push_back({host + at, offset + at, std::min(kPieceBytes, bytes - at)});
  }
}

void TensorStaging::AddInput(const TensorPart& part, uint64_t rows, uint64_t row_bytes, uint64_t offset,
                             uint64_t stride) {
  const TensorPiece whole{part.input, 0, rows * row_bytes};
  const auto pieces = part.input != nullptr ? absl::MakeConstSpan(&whole, 1) : part.input_pieces;
  size_t i = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t end = (row + 1) * row_bytes;
    for (uint64_t at = row * row_bytes; at < end;) {
      while (pieces[i].offset + pieces[i].bytes <= at) ++i;
      const uint64_t bytes = std::min(end, pieces[i].offset + pieces[i].bytes) - at;
      // A host tensor is written only where it is an output.
      auto* host = const_cast<std::byte*>(pieces[i].data + (at - pieces[i].offset));
      AddPieces(&copies_in_, host, offset + row * stride + (at - row * row_bytes), bytes);
      at += bytes;
    }
  }
}

void TensorStaging::AddPart(const TensorPart& part) {
  PartAddress address;
  const bool mapped = kernel_base_ == pinned_.data();
  if (part.memory == TensorMemory::kDevice || (part.memory == TensorMemory::kPinned && mapped) ||
      part.num_tokens == 0) {
    address.input = reinterpret_cast<uint64_t>(part.input);
    address.output = reinterpret_cast<uint64_t>(part.output);
    addresses_.push_back(address);
    return;
  }
  const uint64_t channels = uint64_t{streams_} * hidden_;
  const uint64_t offset = part.first_token * channels * sizeof(float);
  const uint64_t at = reinterpret_cast<uint64_t>(kernel_base_) + offset;
  const bool has_input = part.input != nullptr || !part.input_pieces.empty();
  address.spread = has_input && part.input_dtype != part.output_dtype;
  address.output = at;
  if (has_input) address.input = at;
  addresses_.push_back(address);
  if (part.memory == TensorMemory::kPinned) {
    AddPinned(part, address.spread, offset);
    return;
  }
  const uint64_t input_size = ByteSize(part.input_dtype);
  const uint64_t output_size = ByteSize(part.output_dtype);
  if (address.spread) {
    const uint64_t rows = uint64_t{part.num_tokens} * streams_;
    AddInput(part, rows, hidden_ * input_size, offset, hidden_ * sizeof(float));
    for (uint64_t i = 0; i < rows; ++i) {
      const uint64_t place = offset + i * hidden_ * sizeof(float);
      copies_out_.push_back({part.output + i * hidden_ * output_size, place, hidden_ * output_size});
    }
    AddRange(&inputs_, offset, part.num_tokens * channels * sizeof(float));
    AddRange(&outputs_, offset, part.num_tokens * channels * sizeof(float));
    return;
  }
  if (has_input) {
    AddInput(part, 1, part.num_tokens * channels * input_size, offset, 0);
    AddRange(&inputs_, offset, part.num_tokens * channels * input_size);
  }
  AddPieces(&copies_out_, part.output, offset, part.num_tokens * channels * output_size);
  AddRange(&outputs_, offset, part.num_tokens * channels * output_size);
}

void TensorStaging::AddPinned(const TensorPart& part, bool spread, uint64_t offset) {
  const uint64_t values = uint64_t{part.num_tokens} * streams_ * hidden_;
  const uint64_t rows = spread ? uint64_t{part.num_tokens} * streams_ : 1;
  const auto add = [&](std::vector<PinnedTensor>* tensors, std::byte* host, DType dtype) {
    const uint64_t row_bytes = values / rows * ByteSize(dtype);
    tensors->push_back({host, offset, rows, row_bytes, spread ? hidden_ * sizeof(float) : row_bytes});
  };
  // What is read is written only where it is an output.
  if (part.input != nullptr) add(&pinned_in_, const_cast<std::byte*>(part.input), part.input_dtype);
  add(&pinned_out_, part.output, part.output_dtype);
}

absl::Span<const PartAddress> TensorStaging::Begin(const BatchPlan& plan, ThreadPool& pool) {
  addresses_.clear();
  copies_in_.clear();
  copies_out_.clear();
  inputs_.clear();
  outputs_.clear();
  pinned_in_.clear();
  pinned_out_.clear();
  const bool mapped = plan.num_tokens <= kMappedTokens;
  kernel_base_ = mapped ? pinned_.data() : device_.data();
  for (const TensorPart& part : plan.parts) AddPart(part);
  if (mapped) {
    inputs_.clear();
    outputs_.clear();
  }
  pool.ParallelFor(copies_in_.size(), 1, [this](size_t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(pinned_.data() + copies_in_[i].offset, copies_in_[i].host, copies_in_[i].bytes);
    }
  });
  return addresses_;
}

uint16_t* TensorStaging::BeginEmbeddings(const BatchPlan& plan) {
  const uint64_t bytes = uint64_t{plan.num_tokens} * embed_ * sizeof(Bf16);
  inputs_.clear();
  copies_in_.clear();
  copies_out_.clear();
  pinned_in_.clear();
  pinned_out_.clear();
  outputs_.assign(1, {0, bytes});
  AddPieces(&copies_out_, reinterpret_cast<std::byte*>(plan.embeddings), 0, bytes);
  return device_.As<uint16_t>();
}

absl::Status TensorStaging::CopyRows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride,
                                     const PinnedTensor& tensor, cudaMemcpyKind kind, cudaStream_t stream) {
  if (tensor.rows == 1) {  // which the bound on strides is not for
    return ToStatus(cudaMemcpyAsync(to, from, tensor.row_bytes, kind, stream), "cudaMemcpyAsync of pinned tensors");
  }
  return ToStatus(cudaMemcpy2DAsync(to, to_stride, from, from_stride, tensor.row_bytes, tensor.rows, kind, stream),
                  "cudaMemcpy2DAsync of pinned tensors");
}

absl::Status TensorStaging::EnqueueInputs(cudaStream_t stream) {
  for (const Range& range : inputs_) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(device_.data() + range.offset, pinned_.data() + range.offset,
                                                    range.bytes, cudaMemcpyHostToDevice, stream),
                                    "cudaMemcpyAsync of inputs"));
  }
  for (const PinnedTensor& tensor : pinned_in_) {
    PLEIAD_RETURN_IF_ERROR(CopyRows(device_.data() + tensor.offset, tensor.stride, tensor.host, tensor.row_bytes,
                                    tensor, cudaMemcpyHostToDevice, stream));
  }
  return absl::OkStatus();
}

absl::Status TensorStaging::EnqueueOutputs(cudaStream_t stream) {
  for (const Range& range : outputs_) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(pinned_.data() + range.offset, device_.data() + range.offset,
                                                    range.bytes, cudaMemcpyDeviceToHost, stream),
                                    "cudaMemcpyAsync of outputs"));
  }
  for (const PinnedTensor& tensor : pinned_out_) {
    PLEIAD_RETURN_IF_ERROR(CopyRows(tensor.host, tensor.row_bytes, device_.data() + tensor.offset, tensor.stride,
                                    tensor, cudaMemcpyDeviceToHost, stream));
  }
  return absl::OkStatus();
}

void TensorStaging::Finish(ThreadPool& pool) {
  pool.ParallelFor(copies_out_.size(), 1, [this](size_t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(copies_out_[i].host, pinned_.data() + copies_out_[i].offset, copies_out_[i].bytes);
    }
  });
}

}  // namespace pleiad::cuda
