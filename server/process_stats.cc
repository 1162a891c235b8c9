#include "server/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace pleiad {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

uint64_t ToInteger(absl::string_view text) {
  uint64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : 0;
}

// Seconds since the epoch when the machine started.
double BootTime() {
  const std::string stat = ReadFile("/proc/stat");
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    if (absl::ConsumePrefix(&line, "btime ")) return static_cast<double>(ToInteger(line));
  }
  return 0;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  const std::string text = ReadFile("/proc/self/stat");
  // The name in parentheses may hold anything; field 3 follows the last one.
  const size_t name_end = text.rfind(") ");
  if (name_end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
    const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    constexpr size_t kFirst = 3;
    if (fields.size() > 24 - kFirst) {
      stats.cpu_seconds = static_cast<double>(ToInteger(fields[14 - kFirst]) + ToInteger(fields[15 - kFirst])) / ticks;
      stats.threads = ToInteger(fields[20 - kFirst]);
      stats.start_time_seconds = BootTime() + static_cast<double>(ToInteger(fields[22 - kFirst])) / ticks;
      stats.virtual_bytes = ToInteger(fields[23 - kFirst]);
      stats.resident_bytes = ToInteger(fields[24 - kFirst]) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    }
  }
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++stats.open_fds;
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  return stats;
}

uint64_t MemAvailable() {
  const std::string info = ReadFile("/proc/meminfo");
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (absl::ConsumePrefix(&line, "MemAvailable:") && absl::ConsumeSuffix(&line, "kB")) return ToInteger(line) * 1024;
  }
  return 0;
}

}  // namespace pleiad
