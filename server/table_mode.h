// How the table is held.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/flags.h"

namespace pleiad {

enum class TableMode : uint8_t { kResident };

// auto: resident when `table_bytes` fit in half of `available_bytes`. ResourceExhausted naming the sizes when the table
// cannot be held.
absl::StatusOr<TableMode> DecideTable(TableFlag flag, uint64_t table_bytes, uint64_t available_bytes);

}  // namespace pleiad
