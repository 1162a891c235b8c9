// Which device a server runs on, and the memory there is for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/device/device.h"
#include "server/flags.h"
#include "server/memory_plan.h"

namespace pleiad {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  uint32_t cuda_ordinal = 0;  // of kCuda
  std::string name;           // "cpu", "cuda:0"
  std::string reason;         // for --check and the log
  AvailableMemory memory;
};

// auto: GPU 0 where `find_gpu` finds it, else the CPU, whatever kept it from being found. An explicit GPU that is not
// found: `find_gpu`'s status, naming the flag.
absl::StatusOr<DeviceChoice> ChooseDevice(
    const ServerFlags& flags, const std::function<absl::StatusOr<CudaGpu>(uint32_t)>& find_gpu = FindCudaGpu);

// How long a thread stays awake for the next step: as --spin says; else kSpin where the device is other hardware than
// the CPUs, and one of the `cpus` that the process may use can be spared.
inline constexpr absl::Duration kSpin = absl::Microseconds(250);
inline constexpr uint32_t kSpinCpus = 4;
absl::Duration SpinFor(const ServerFlags& flags, RunCost cost, uint32_t cpus = std::thread::hardware_concurrency());

}  // namespace pleiad
