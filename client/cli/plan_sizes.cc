#include "client/cli/plan_sizes.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace pleiad::cli {

absl::StatusOr<uint64_t> ParseBytes(absl::string_view flag, absl::string_view text) {
  absl::string_view number = text;
  double unit = absl::ConsumeSuffix(&number, "iB") ? 1024 : absl::ConsumeSuffix(&number, "B") ? 1000 : 0;
  if (unit > 0) {
    constexpr absl::string_view kPrefixes = "KMGT";
    const size_t power = number.empty() ? absl::string_view::npos : kPrefixes.find(number.back());
    if (power != absl::string_view::npos) number.remove_suffix(1);
    // "12iB" is no size.
    unit = power != absl::string_view::npos ? std::pow(unit, power + 1) : unit == 1000 ? 1 : 0;
  } else {
    unit = 1;
  }
  double value = 0;
  value = absl::SimpleAtod(number, &value) ? std::floor(value * unit) : 0;
  if (!(value >= 1 && value <= 0x1p62)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is \"", text, "\": must be from 1 byte to 2^62, as 4GiB, 512MiB or 1e9"));
  }
  return static_cast<uint64_t>(value);
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t power = 0;
  for (; value >= 999.5 && power < 4; ++power) value /= 1000;
  return absl::StrFormat("%.3g %cB", value, "BkMGT"[power]);
}

}  // namespace pleiad::cli
