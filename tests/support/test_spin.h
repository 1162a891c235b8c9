// Whether servers of tests have a thread that spins: for as long as PLEIAD_TEST_SPIN in the environment says.
#pragma once

#include <cstdlib>
#include <optional>

#include "absl/time/time.h"

namespace pleiad::testing {

inline std::optional<absl::Duration> TestSpin() {
  const char* const text = std::getenv("PLEIAD_TEST_SPIN");
  absl::Duration spin;
  if (text == nullptr || !absl::ParseDuration(text, &spin)) return std::nullopt;
  return spin;
}

}  // namespace pleiad::testing
