#include "server/flag_values.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace pleiad {
namespace {

// Longer names first: "B" ends all of them.
constexpr std::array<std::pair<absl::string_view, double>, 9> kUnits{{{"KiB", 0x1p10},
                                                                      {"MiB", 0x1p20},
                                                                      {"GiB", 0x1p30},
                                                                      {"TiB", 0x1p40},
                                                                      {"KB", 1e3},
                                                                      {"MB", 1e6},
                                                                      {"GB", 1e9},
                                                                      {"TB", 1e12},
                                                                      {"B", 1}}};

}  // namespace

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  double unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (absl::ConsumeSuffix(&number, name)) {
      unit = bytes;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no size (as 4GiB, 512MiB, 1e9)"));
  }
  value = std::floor(value * unit);
  if (!(value >= 1 && value <= 0x1p62)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' must be from 1 byte to 2^62"));
  }
  return static_cast<uint64_t>(value);
}

std::string FormatSize(uint64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

}  // namespace pleiad
