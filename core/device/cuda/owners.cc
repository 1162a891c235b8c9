#include "core/device/cuda/owners.h"

#include "absl/strings/str_cat.h"

namespace pleiad::cuda {
namespace {

absl::Status WithSize(const absl::Status& status, absl::string_view what, uint64_t bytes) {
  return absl::Status(status.code(), absl::StrCat(what, " of ", bytes, " bytes: ", status.message()));
}

}  // namespace

absl::StatusOr<DeviceMemoryBlock> AllocateDevice(absl::string_view what, uint64_t bytes) {
  if (bytes == 0) return DeviceMemoryBlock();
  void* data = nullptr;
  const absl::Status status = ToStatus(cudaMalloc(&data, bytes), "cudaMalloc");
  if (!status.ok()) return WithSize(status, what, bytes);
  return DeviceMemoryBlock(data, bytes);
}

absl::StatusOr<PinnedMemoryBlock> AllocatePinned(absl::string_view what, uint64_t bytes) {
  if (bytes == 0) return PinnedMemoryBlock();
  void* data = nullptr;
  const absl::Status status =
      ToStatus(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
  if (!status.ok()) return WithSize(status, what, bytes);
  return PinnedMemoryBlock(data, bytes);
}

}  // namespace pleiad::cuda
