// fio's random reads over given files, the floor under a reader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pleiad::bench {

struct FioOptions {
  std::vector<std::string> files;
  std::string engine = "io_uring";
  uint32_t block_bytes = 512;
  uint32_t depth = 128;
  uint32_t batch = 1;  // submitted together and awaited together
  double seconds = 1;
};

struct FioResult {
  double reads_per_second = 0;
  double cpu_us_per_read = 0;
};

// Runs `fio` with O_DIRECT and registered files and buffers; blocks. Unavailable: it is not installed or failed.
absl::StatusOr<FioResult> RunFio(const FioOptions& options);

}  // namespace pleiad::bench
