// CUDA's calls for memory and events of other processes, and for pages that they share with this one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/device/cuda/owners.h"
#include "core/device/import_table.h"

namespace pleiad::cuda {

// "GPU-" and the digits, as nvidia-smi -L shows it.
absl::StatusOr<std::string> GpuUuid(int ordinal);

class CudaIpc final : public IpcDriver {
 public:
  // Of GPU `ordinal`. An error where this driver cannot tell how large an allocation is.
  static absl::StatusOr<std::unique_ptr<CudaIpc>> Create(int ordinal);

  const std::string& gpu_uuid() const override { return gpu_uuid_; }
  absl::StatusOr<Allocation> OpenMemory(const std::string& handle) override;
  void CloseMemory(std::byte* data) override;
  absl::StatusOr<void*> OpenEvent(const std::string& handle, EventUse use) override;
  void CloseEvent(void* event) override;
  absl::StatusOr<bool> IsDone(void* event) override;
  absl::Status Pin(std::byte* data, uint64_t bytes) override;
  bool Unpin(std::byte* data) override;

 private:
  CudaIpc(int ordinal, std::string gpu_uuid, void* address_range, bool host_page_tables, Stream stream);

  absl::Status UseGpu() const;
  absl::StatusOr<Allocation> Examine(std::byte* data) const;

  const int ordinal_;
  const std::string gpu_uuid_;
  void* const address_range_;  // cuMemGetAddressRange
  const bool host_page_tables_;
  const Stream stream_;  // where events are tried
};

}  // namespace pleiad::cuda
