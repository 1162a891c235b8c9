// Which GPU there is.
#include <cuda_runtime_api.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/device/cuda/cublaslt.h"
#include "core/device/cuda/cuda_status.h"
#include "core/device/device.h"

namespace pleiad {

absl::StatusOr<CudaGpu> FindCudaGpu(uint32_t ordinal) {
  int count = 0;
  PLEIAD_RETURN_IF_ERROR(cuda::ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (ordinal >= static_cast<uint32_t>(count)) {
    return absl::NotFoundError(absl::StrCat("cuda:", ordinal, ": must be < ", count, ", the GPUs there are"));
  }
  PLEIAD_RETURN_IF_ERROR(cuda::LoadCublasLt().status());
  PLEIAD_RETURN_IF_ERROR(cuda::ToStatus(cudaSetDevice(static_cast<int>(ordinal)), "cudaSetDevice"));
  cudaDeviceProp properties;
  PLEIAD_RETURN_IF_ERROR(
      cuda::ToStatus(cudaGetDeviceProperties(&properties, static_cast<int>(ordinal)), "cudaGetDeviceProperties"));
  size_t free = 0;
  size_t total = 0;
  PLEIAD_RETURN_IF_ERROR(cuda::ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return CudaGpu{properties.name, total, free};
}

}  // namespace pleiad
