// Values of flags that carry a unit.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

// Bytes: a number, whole or not, with an optional unit B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB
// (powers of 1024), as in "4GiB", "512MiB", "1e9". InvalidArgument when it is not one, not positive, or above 2^62.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

// "51.2 GB": for logs and errors.
std::string FormatSize(uint64_t bytes);

}  // namespace pleiad
