#include "tests/support/process/resident_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace pleiad::testing {

uint64_t ResidentBytes(pid_t process) {
  std::ifstream statm("/proc/" + std::to_string(process) + "/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::ostream& operator<<(std::ostream& out, const MemoryGrowth& growth) {
  out << "resident after " << growth.warm_cycles << " cycles " << growth.warm_bytes / 1024 << " KiB, after "
      << growth.cycles << " " << growth.end_bytes / 1024 << " KiB; on the way";
  for (uint64_t bytes : growth.samples) out << " " << bytes / 1024;
  return out;
}

MemoryGrowth MeasureGrowth(pid_t process, uint32_t warm_cycles, uint32_t cycles, uint32_t stride,
                           const std::function<void(uint32_t done)>& run) {
  MemoryGrowth growth;
  growth.warm_cycles = warm_cycles;
  growth.cycles = cycles;
  for (uint32_t done = 0; done < cycles; done += stride) {
    if (done == warm_cycles) growth.warm_bytes = ResidentBytes(process);
    if (done % (cycles / 10) < stride) growth.samples.push_back(ResidentBytes(process));
    run(done);
  }
  growth.end_bytes = ResidentBytes(process);
  return growth;
}

}  // namespace pleiad::testing
