#include "tests/bench/bench_parts.h"

#include <memory>
#include <utility>

#include "tests/bench/echo_service.h"
#include "tests/bench/null_device.h"

namespace pleiad::bench {

ServerParts BenchParts() {
  return {
      .wrap_device = [](std::unique_ptr<Device> device,
                        const Geometry& geometry) { return std::make_unique<NullDevice>(std::move(device), geometry); },
      .make_generic = [] { return std::make_unique<EchoService>(); }};
}

}  // namespace pleiad::bench
