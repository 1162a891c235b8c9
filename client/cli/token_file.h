// Token ids from a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pleiad::cli {

// With a `prefix`: PREFIX.tokens (I32) of a safetensors trace. Without: the whole file, little-endian 32-bit ids.
// Errors name --trace, the value and the rule. NotFound; InvalidArgument: no such tensor, no ids, bytes that are no
// whole number of ids, an id that is not below `vocab_size`.
absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& path, const std::string& prefix,
                                                 uint32_t vocab_size);

}  // namespace pleiad::cli
