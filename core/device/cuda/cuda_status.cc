#include "core/device/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace pleiad::cuda {

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      cudaGetLastError();  // not sticky; the next launch must not report it
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return absl::NotFoundError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace pleiad::cuda
