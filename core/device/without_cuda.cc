// Stands in for cuda/ where there is no nvcc to build it.
#include "absl/status/statusor.h"
#include "core/device/device.h"

namespace pleiad {
namespace {

absl::Status NotBuilt() { return absl::UnimplementedError("built without CUDA: use the CPU device"); }

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions&, std::vector<LayerWeights>) {
  return NotBuilt();
}

absl::StatusOr<CudaGpu> FindCudaGpu(uint32_t) { return NotBuilt(); }

}  // namespace pleiad
