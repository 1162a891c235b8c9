#include "tests/soak/server_facts.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/e2e/metrics_page.h"
#include "tests/support/process/resident_memory.h"

namespace pleiad::testing {
namespace {

constexpr const char* kGauges[] = {
    "pleiad_ready",
    "pleiad_sequences",
    "pleiad_inflight_requests",
    "pleiad_inflight_bytes",
    "pleiad_arena_slots{state=\"arriving\"}",
    "pleiad_arena_slots{state=\"held\"}",
    "pleiad_row_reads_in_flight",
    "pleiad_row_plans_waiting",
    "pleiad_staging_free_rows",
    "pleiad_staging_quarantined_rows",
    "pleiad_row_read_errors_total",
};

uint64_t Sockets(const std::string& folder) {
  uint64_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (std::filesystem::read_symlink(entry.path(), error).string().rfind("socket:", 0) == 0) ++count;
  }
  return count;
}

uint64_t Entries(const std::string& folder) {
  std::error_code error;
  uint64_t count = 0;
  for (auto it = std::filesystem::directory_iterator(folder, error); it != std::filesystem::directory_iterator();
       ++it) {
    ++count;
  }
  return count;
}

uint64_t AnonymousBytes(pid_t process) {
  std::ifstream rollup(absl::StrCat("/proc/", process, "/smaps_rollup"));
  for (std::string word; rollup >> word;) {
    uint64_t kib = 0;
    if (word == "Anonymous:" && rollup >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ServerFacts& facts) {
  return out << absl::StrFormat("resident %d KiB, anonymous %d KiB, descriptors %d, sockets %d, threads %d",
                                facts.resident_bytes / 1024, facts.anonymous_bytes / 1024, facts.descriptors,
                                facts.sockets, facts.threads);
}

ServerFacts FactsOf(const ServerProcess& server) {
  ServerFacts facts;
  const std::string page = ScrapeMetrics(server.metrics_port);
  for (const char* name : kGauges) facts.gauges[name] = MetricValue(page, name);
  const std::string proc = absl::StrCat("/proc/", server.child.pid());
  facts.descriptors = Entries(proc + "/fd");
  facts.sockets = Sockets(proc + "/fd");
  facts.threads = Entries(proc + "/task");
  facts.resident_bytes = ResidentBytes(server.child.pid());
  facts.anonymous_bytes = AnonymousBytes(server.child.pid());
  return facts;
}

std::vector<std::string> WhatStays(const ServerFacts& first, const ServerFacts& last) {
  std::vector<std::string> stays;
  for (const auto& [name, value] : first.gauges) {
    const auto found = last.gauges.find(name);
    // A page that is not there is all NaN, which equals nothing.
    if (found == last.gauges.end() || !(found->second == value)) {
      stays.push_back(absl::StrCat(name, ": ", value, ", then ", found == last.gauges.end() ? -1 : found->second));
    }
  }
  if (last.descriptors > first.descriptors) {
    stays.push_back(absl::StrCat("descriptors: ", first.descriptors, ", then ", last.descriptors));
  }
  if (last.sockets > first.sockets) stays.push_back(absl::StrCat("sockets: ", first.sockets, ", then ", last.sockets));
  if (last.threads > first.threads) stays.push_back(absl::StrCat("threads: ", first.threads, ", then ", last.threads));
  return stays;
}

ServerFacts BeforeFirstCall(ServerFacts facts) {
  facts.descriptors = facts.threads = UINT64_MAX;
  return facts;
}

ServerFacts AwaitQuiet(const ServerProcess& server, const ServerFacts& first) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  ServerFacts facts = FactsOf(server);
  while (!WhatStays(first, facts).empty() && std::chrono::steady_clock::now() < until) facts = FactsOf(server);
  return facts;
}

}  // namespace pleiad::testing
