#include "server/load_reporter.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "server/flag_values.h"
#include "server/log.h"

namespace pleiad {

ProgressStyle LoadReporter::DetectStyle() {
  return ::isatty(STDERR_FILENO) == 1 ? ProgressStyle::kBar : ProgressStyle::kLogLines;
}

void LoadReporter::Report(const LoadProgress& progress) {
  constexpr int kBarWidth = 40;
  if (progress.bytes_total == 0) return;
  const double ratio = static_cast<double>(progress.bytes_read) / static_cast<double>(progress.bytes_total);
  const std::string done = FormatSize(progress.bytes_read), total = FormatSize(progress.bytes_total);
  const std::string rate = FormatSize(static_cast<uint64_t>(progress.bytes_per_second)) + "/s";
  const bool last = progress.bytes_read >= progress.bytes_total;
  if (style_ == ProgressStyle::kBar) {
    const int filled = static_cast<int>(ratio * kBarWidth);
    std::string bar(static_cast<size_t>(kBarWidth), ' ');
    bar.replace(0, static_cast<size_t>(filled), static_cast<size_t>(filled), '#');
    std::fprintf(stderr, "\rtable [%s] %3.0f %% of %s, %s   %s", bar.c_str(), 100 * ratio, total.c_str(), rate.c_str(),
                 last ? "\n" : "");
    std::fflush(stderr);
    return;
  }
  const int tenths = static_cast<int>(ratio * 10);
  if (tenths <= tenths_logged_) return;
  tenths_logged_ = tenths;
  spdlog::info("table: {} of {} read, {}", done, total, rate);
}

}  // namespace pleiad
