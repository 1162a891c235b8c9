#include "server/table_mode.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/flag_values.h"

namespace pleiad {

absl::StatusOr<TableMode> DecideTable(TableFlag flag, uint64_t table_bytes, uint64_t available_bytes) {
  const std::string sizes = absl::StrCat("the table takes ", FormatSize(table_bytes), " of memory and ",
                                         FormatSize(available_bytes), " are available");
  if (flag == TableFlag::kResident) {
    if (table_bytes <= available_bytes) return TableMode::kResident;
    return absl::ResourceExhaustedError(absl::StrCat("--table resident: ", sizes, "; --table cached is not built yet"));
  }
  if (table_bytes <= available_bytes / 2) return TableMode::kResident;
  return absl::ResourceExhaustedError(
      absl::StrCat("--table auto: ", sizes,
                   ": it must fit in half of that to be resident, and --table cached is "
                   "not built yet (--table resident tries all the same)"));
}

}  // namespace pleiad
