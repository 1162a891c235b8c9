#include "server/device_choice.h"

#include "absl/strings/str_cat.h"
#include "server/flag_values.h"
#include "server/process_stats.h"

namespace pleiad {

absl::StatusOr<DeviceChoice> ChooseDevice(const ServerFlags& flags,
                                          const std::function<absl::StatusOr<CudaGpu>(uint32_t)>& find_gpu) {
  DeviceChoice choice;
  choice.memory.host = MemAvailable();
  choice.name = "cpu";
  choice.reason = "--device cpu";
  if (flags.device == DeviceFlag::kCpu) return choice;
  const uint32_t ordinal = flags.device == DeviceFlag::kCuda ? flags.cuda_ordinal : 0;
  const std::string name = absl::StrCat("cuda:", ordinal);
  const absl::StatusOr<CudaGpu> gpu = find_gpu(ordinal);
  if (gpu.ok()) {
    choice.kind = DeviceKind::kCuda;
    choice.cuda_ordinal = ordinal;
    choice.name = name;
    choice.memory.gpu = gpu->free_bytes;
    choice.reason = absl::StrCat(flags.device == DeviceFlag::kAuto ? "--device auto: " : "", gpu->name, ", ",
                                 FormatSize(gpu->free_bytes), " of ", FormatSize(gpu->total_bytes), " free");
    return choice;
  }
  if (flags.device == DeviceFlag::kCuda) {
    return absl::Status(gpu.status().code(), absl::StrCat("--device ", name, ": ", gpu.status().message()));
  }
  choice.reason = absl::StrCat("--device auto: no GPU: ", gpu.status().message());
  return choice;
}

absl::Duration SpinFor(const ServerFlags& flags, RunCost cost, uint32_t cpus) {
  const bool spared = cost == RunCost::kEnqueueing && cpus >= kSpinCpus;
  return flags.spin.value_or(spared ? kSpin : absl::ZeroDuration());
}

}  // namespace pleiad
