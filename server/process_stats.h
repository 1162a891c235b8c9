// What the kernel says about this process.
#pragma once

#include <cstdint>

namespace pleiad {

struct ProcessStats {
  double cpu_seconds = 0;  // user and system
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t threads = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
  double start_time_seconds = 0;  // since the epoch
};

// Fields that cannot be read are 0. Reads /proc; blocks for that only.
ProcessStats ReadProcessStats();

// MemAvailable of /proc/meminfo in bytes; 0 when it cannot be read.
uint64_t MemAvailable();

}  // namespace pleiad
