// Shows how far the table is: a bar where standard error is a terminal, log lines elsewhere.
#pragma once

#include <cstdint>

#include "core/rows/resident_row_store.h"

namespace pleiad {

enum class ProgressStyle : uint8_t { kBar, kLogLines };

// Used by one thread at a time.
class LoadReporter {
 public:
  explicit LoadReporter(ProgressStyle style) : style_(style) {}
  // kBar where standard error is a terminal.
  static ProgressStyle DetectStyle();

  void Report(const LoadProgress& progress);

 private:
  const ProgressStyle style_;
  int tenths_logged_ = 0;
};

}  // namespace pleiad
