#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/base/unique_fd.h"
#include "tests/chaos/wall_clock.h"

namespace pleiad::testing {

SharedWallClock::SharedWallClock(const std::string& path) : path_(path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  memory_ = MAP_FAILED;
  if (fd.valid() && ::ftruncate(fd.get(), sizeof(int64_t)) == 0) {
    memory_ = ::mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (memory_ != MAP_FAILED) return;
  std::perror(path.c_str());
  std::abort();
}

SharedWallClock::~SharedWallClock() { ::munmap(memory_, sizeof(int64_t)); }

std::vector<std::string> SharedWallClock::launcher() const {
  return {"/usr/bin/env", "LD_PRELOAD=" PLEIAD_WALL_CLOCK, "WALL_CLOCK_FILE=" + path_};
}

void SharedWallClock::Shift(absl::Duration by) {
  static_cast<std::atomic<int64_t>*>(memory_)->fetch_add(absl::ToInt64Nanoseconds(by));
}

}  // namespace pleiad::testing
