// The one translation of CUDA's errors to statuses.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pleiad::cuda {

// OK, or the error's name and text behind `call`. ResourceExhausted: no memory. NotFound: no such GPU or no driver.
// Internal: everything else; such an error may stay with the context, so the device counts as lost.
absl::Status ToStatus(cudaError_t error, absl::string_view call);

}  // namespace pleiad::cuda
