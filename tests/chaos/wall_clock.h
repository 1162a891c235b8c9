// Clocks that are set while programs run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

// Of wall_clock.cc, linked into this program.
extern "C" void pleiad_test_shift_wall_clock(int64_t nanos);

namespace pleiad::testing {

// This process's.
inline void ShiftOwnWallClock(absl::Duration by) { pleiad_test_shift_wall_clock(absl::ToInt64Nanoseconds(by)); }

// That of processes which are started behind launcher().
class SharedWallClock {
 public:
  // In a new file. Aborts where there can be none.
  explicit SharedWallClock(const std::string& path);
  ~SharedWallClock();
  SharedWallClock(const SharedWallClock&) = delete;
  SharedWallClock& operator=(const SharedWallClock&) = delete;

  // A command that runs the one behind it.
  std::vector<std::string> launcher() const;
  void Shift(absl::Duration by);

 private:
  const std::string path_;
  void* memory_ = nullptr;
};

}  // namespace pleiad::testing
