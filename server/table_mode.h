// How the table is held.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/flags.h"

namespace pleiad {

enum class TableMode : uint8_t { kResident, kCached };

// auto: resident when `table_bytes` fit in half of `available_bytes`, else cached. ResourceExhausted naming the sizes
// when the table is to be resident and does not fit.
absl::StatusOr<TableMode> DecideTable(TableFlag flag, uint64_t table_bytes, uint64_t available_bytes);

}  // namespace pleiad
