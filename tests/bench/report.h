// What every benchmark prints and writes beside its figures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pleiad::bench {

template <typename Fn>
double Microseconds(Fn fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// Of at least one value.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The processor's name and the number of cores.
inline std::string Machine() {
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    processor = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  return processor + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
}

// Prints machine, commit and settings; the report with them, to which the figures are added.
inline nlohmann::json StartReport(const std::string& machine, const nlohmann::json& settings) {
  std::printf("%s, commit %s, %s\n", machine.c_str(), PLEIAD_COMMIT, settings.dump().c_str());
  return {{"machine", machine}, {"commit", PLEIAD_COMMIT}, {"settings", settings}};
}

// Writes the report to `file` unless that is empty; false when it cannot.
inline bool WriteReport(const nlohmann::json& report, const std::string& file) {
  if (file.empty()) return true;
  std::ofstream out(file);
  out << report.dump(2) << "\n";
  out.close();
  if (!out) std::fprintf(stderr, "--json '%s': cannot be written\n", file.c_str());
  return !out.fail();
}

}  // namespace pleiad::bench
