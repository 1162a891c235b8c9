#include "tests/bench/bench_parts.h"

#include <memory>
#include <utility>

#include "tests/bench/echo_service.h"
#include "tests/bench/null_device.h"

namespace pleiad::bench {

ServerParts BenchParts() {
  return {.wrap_device = [](std::unique_ptr<Device> device, const Geometry& geometry) -> std::unique_ptr<Device> {
            // What a GPU is to be measured for is its stage, in its clients' memory.
            if (!device->info().gpu_uuid.empty()) return device;
            return std::make_unique<NullDevice>(std::move(device), geometry);
          },
          .make_generic = [] { return std::make_unique<EchoService>(); }};
}

}  // namespace pleiad::bench
