#include "server/table_mode.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/flag_values.h"

namespace pleiad {

absl::StatusOr<TableMode> DecideTable(TableFlag flag, uint64_t table_bytes, uint64_t available_bytes) {
  switch (flag) {
    case TableFlag::kCached:
      return TableMode::kCached;
    case TableFlag::kAuto:
      return table_bytes <= available_bytes / 2 ? TableMode::kResident : TableMode::kCached;
    case TableFlag::kResident:
      break;
  }
  if (table_bytes <= available_bytes) return TableMode::kResident;
  return absl::ResourceExhaustedError(absl::StrCat("--table resident: the table takes ", FormatSize(table_bytes),
                                                   " of memory and ", FormatSize(available_bytes),
                                                   " are available; use --table cached"));
}

}  // namespace pleiad
