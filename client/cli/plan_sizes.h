// Sizes as flags take them and tables show them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad::cli {

// "4GiB", "512MiB", "1e9", from 1 byte to 2^62; InvalidArgument naming `flag`, the text and the rule.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view flag, absl::string_view text);

// "1.5 GB".
std::string FormatBytes(uint64_t bytes);

}  // namespace pleiad::cli
