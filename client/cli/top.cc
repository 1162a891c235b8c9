#include "client/cli/top.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/scrape.h"

namespace pleiad::cli {
namespace {

constexpr double kQuantiles[] = {0.5, 0.99};

struct Line {
  absl::string_view name, labels;
  double value = 0;
};

std::optional<Line> ParseLine(absl::string_view text) {
  Line line;
  const size_t space = text.rfind(' ');
  if (text.empty() || text.front() == '#' || space == absl::string_view::npos ||
      !absl::SimpleAtod(text.substr(space + 1), &line.value)) {
    return std::nullopt;
  }
  line.name = text.substr(0, space);
  if (const size_t brace = line.name.find('{'); brace != absl::string_view::npos) {
    line.labels = line.name.substr(brace);
    line.name = line.name.substr(0, brace);
  }
  return line;
}

bool Has(const Line& line, absl::string_view label) { return absl::StrContains(line.labels, label); }

void AddBucket(const Line& line, TopHistogram& histogram) {
  const size_t at = line.labels.find("le=\"");
  if (at == absl::string_view::npos) return;
  absl::string_view bound = line.labels.substr(at + 4);
  bound = bound.substr(0, bound.find('"'));
  double le = std::numeric_limits<double>::infinity();
  if (bound != "+Inf" && !absl::SimpleAtod(bound, &le)) return;
  histogram.at_most[le] += line.value;
}

struct Counter {
  absl::string_view name;
  double TopSample::*field;
};
constexpr std::array<Counter, 8> kGauges{{{"pleiad_ready", &TopSample::ready},
                                          {"pleiad_draining", &TopSample::draining},
                                          {"pleiad_load_ratio", &TopSample::load_ratio},
                                          {"pleiad_sequences", &TopSample::sequences},
                                          {"pleiad_sequences_limit", &TopSample::sequences_limit},
                                          {"pleiad_inflight_requests", &TopSample::in_flight},
                                          {"process_resident_memory_bytes", &TopSample::resident_bytes},
                                          {"process_start_time_seconds", &TopSample::start_time}}};
constexpr std::array<Counter, 5> kCounters{{{"pleiad_tokens_total", &TopSample::tokens},
                                            {"pleiad_row_lookups_total", &TopSample::lookups},
                                            {"pleiad_row_read_seconds_count", &TopSample::reads},
                                            {"pleiad_row_read_errors_total", &TopSample::read_errors},
                                            {"pleiad_device_busy_seconds_total", &TopSample::busy_seconds}}};

void Subtract(const TopHistogram& before, TopHistogram& now) {
  for (auto& [bound, count] : now.at_most) {
    const auto found = before.at_most.find(bound);
    if (found != before.at_most.end()) count -= found->second;
  }
}

void AddTo(const TopHistogram& one, TopHistogram& sum) {
  for (const auto& [bound, count] : one.at_most) sum.at_most[bound] += count;
}

const char* State(const TopRow& row) {
  if (absl::IsDeadlineExceeded(row.error)) return "no answer";
  if (!row.error.ok()) return "down";
  if (row.sample.draining > 0) return "draining";
  if (row.sample.ready > 0) return "serving";
  return row.sample.load_ratio < 1 ? "loading" : "not serving";
}

std::optional<double> HitRate(const TopSample& sample) {
  if (sample.lookups <= 0) return std::nullopt;
  return sample.hits / sample.lookups;
}

std::string Micro(std::optional<double> seconds) {
  if (!seconds.has_value()) return "-";
  if (*seconds < 0.01) return absl::StrFormat("%.0fus", 1e6 * *seconds);
  if (*seconds < 1) return absl::StrFormat("%.0fms", 1e3 * *seconds);
  return absl::StrFormat("%.1fs", *seconds);
}

std::string Pair(const TopHistogram& histogram) {
  std::vector<std::string> parts;
  for (double q : kQuantiles) parts.push_back(Micro(histogram.Quantile(q)));
  return absl::StrJoin(parts, "/");
}

std::string Bytes(double bytes) {
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (bytes < 1000) break;
    bytes /= 1000;
    unit = next;
  }
  return absl::StrFormat("%.3g%s", bytes, unit);
}

nlohmann::json OrNull(std::optional<double> value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json Quantiles(const TopHistogram& histogram) {
  return {{"p50", OrNull(histogram.Quantile(0.5))}, {"p99", OrNull(histogram.Quantile(0.99))}};
}

struct Seen {
  absl::Time at;
  absl::StatusOr<TopSample> sample;
};

// Of all servers at the same time: one that hangs delays none of the others.
std::vector<Seen> Look(const std::vector<std::string>& addresses, absl::Duration patience, const TopDeps& deps) {
  std::vector<Seen> seen(addresses.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < addresses.size(); ++i) {
    threads.emplace_back([&deps, patience, &address = addresses[i], &one = seen[i]] {
      const absl::StatusOr<std::string> page = deps.scrape(address, patience);
      one.at = deps.now();
      one.sample = page.ok() ? ParseTopSample(*page) : page.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

}  // namespace

std::optional<double> TopHistogram::Quantile(double q) const {
  if (at_most.empty() || !(at_most.rbegin()->second > 0)) return std::nullopt;
  const double rank = q * at_most.rbegin()->second;
  double below = 0, count_below = 0;
  for (const auto& [bound, count] : at_most) {
    if (count >= rank && count > count_below) {
      if (std::isinf(bound)) return below;
      return below + (bound - below) * (rank - count_below) / (count - count_below);
    }
    below = bound;
    count_below = count;
  }
  return below;
}

absl::StatusOr<TopSample> ParseTopSample(absl::string_view page) {
  TopSample sample;
  bool ours = false;
  for (absl::string_view text : absl::StrSplit(page, '\n')) {
    const std::optional<Line> line = ParseLine(absl::StripSuffix(text, "\r"));
    if (!line.has_value()) continue;
    ours |= line->name == "pleiad_ready";
    for (const Counter& gauge : kGauges) {
      if (line->name == gauge.name) sample.*gauge.field = line->value;
    }
    for (const Counter& counter : kCounters) {
      if (line->name == counter.name) sample.*counter.field += line->value;
    }
    if (line->name == "pleiad_row_lookups_total" && Has(*line, "result=\"hit\"")) sample.hits += line->value;
    if (line->name == "pleiad_row_read_seconds_bucket") AddBucket(*line, sample.read);
    if (line->name == "pleiad_step_phase_seconds_bucket") {
      if (Has(*line, "phase=\"queue\"")) AddBucket(*line, sample.queue);
      if (Has(*line, "phase=\"device\"")) AddBucket(*line, sample.device);
    }
  }
  if (!ours) return absl::InvalidArgumentError("the page has no pleiad_ready: it is not of a pleiad-server");
  return sample;
}

TopSample Since(const TopSample& before, TopSample now) {
  if (now.start_time != before.start_time) return now;
  for (const Counter& counter : kCounters) now.*counter.field -= before.*counter.field;
  now.hits -= before.hits;
  Subtract(before.queue, now.queue);
  Subtract(before.device, now.device);
  Subtract(before.read, now.read);
  return now;
}

std::vector<TopRow> WithSum(std::vector<TopRow> rows) {
  TopRow sum;
  sum.name = "all";
  int answering = 0;
  for (const TopRow& row : rows) {
    if (!row.error.ok()) continue;
    ++answering;
    sum.seconds = std::max(sum.seconds, row.seconds);
    const TopSample& one = row.sample;
    for (const Counter& counter : kCounters) sum.sample.*counter.field += one.*counter.field;
    sum.sample.hits += one.hits;
    for (double TopSample::*field :
         {&TopSample::sequences, &TopSample::sequences_limit, &TopSample::in_flight, &TopSample::resident_bytes}) {
      sum.sample.*field += one.*field;
    }
    sum.sample.ready = std::max(sum.sample.ready, one.ready);
    AddTo(one.queue, sum.sample.queue);
    AddTo(one.device, sum.sample.device);
    AddTo(one.read, sum.sample.read);
  }
  sum.sample.load_ratio = 1;
  if (answering > 1) rows.push_back(std::move(sum));
  return rows;
}

std::string TopTable(const std::vector<TopRow>& rows) {
  size_t width = 6;
  for (const TopRow& row : rows) width = std::max(width, row.name.size());
  const int name = static_cast<int>(width);
  std::string table = absl::StrFormat("%-*s %-11s %11s %9s %6s %13s %13s %13s %8s %6s %6s %6s %7s\n", name, "server",
                                      "state", "sequences", "tokens/s", "hits", "queue p50/99", "device p50/99",
                                      "read p50/99", "reads/s", "errors", "flight", "busy", "memory");
  for (const TopRow& row : rows) {
    if (!row.error.ok()) {
      absl::StrAppendFormat(&table, "%-*s %-11s %s\n", name, row.name, State(row), row.error.message());
      continue;
    }
    const TopSample& now = row.sample;
    const std::optional<double> hits = HitRate(now);
    absl::StrAppendFormat(&table, "%-*s %-11s %11s %9.0f %6s %13s %13s %13s %8.0f %6.0f %6.0f %5.0f%% %7s\n", name,
                          row.name, State(row), absl::StrCat(now.sequences, "/", now.sequences_limit),
                          now.tokens / row.seconds, hits.has_value() ? absl::StrFormat("%.1f%%", 100 * *hits) : "-",
                          Pair(now.queue), Pair(now.device), Pair(now.read), now.reads / row.seconds, now.read_errors,
                          now.in_flight, 100 * now.busy_seconds / row.seconds, Bytes(now.resident_bytes));
  }
  return table;
}

std::string TopJson(const std::vector<TopRow>& rows) {
  nlohmann::json servers = nlohmann::json::array();
  for (const TopRow& row : rows) {
    nlohmann::json server = {{"server", row.name}, {"state", State(row)}};
    if (!row.error.ok()) {
      server["error"] = row.error.message();
    } else {
      const TopSample& now = row.sample;
      server.update({{"seconds", row.seconds},
                     {"sequences", now.sequences},
                     {"sequences_limit", now.sequences_limit},
                     {"tokens_per_second", now.tokens / row.seconds},
                     {"hit_rate", OrNull(HitRate(now))},
                     {"queue_seconds", Quantiles(now.queue)},
                     {"device_seconds", Quantiles(now.device)},
                     {"read_seconds", Quantiles(now.read)},
                     {"reads_per_second", now.reads / row.seconds},
                     {"read_errors", now.read_errors},
                     {"inflight_requests", now.in_flight},
                     {"busy", now.busy_seconds / row.seconds},
                     {"resident_bytes", now.resident_bytes}});
    }
    servers.push_back(std::move(server));
  }
  return nlohmann::json{{"servers", std::move(servers)}}.dump();
}

absl::Status Top(const TopOptions& options, const TopDeps& deps, std::ostream& out) {
  const absl::Duration patience = std::min(options.interval, kScrapePatience);
  absl::Time next = deps.now();
  std::vector<Seen> before = Look(options.addresses, patience, deps);
  absl::Status last;
  for (uint64_t shown = 0; !options.count.has_value() || shown < *options.count; ++shown) {
    next = std::max(next + options.interval, deps.now());
    deps.wait_until(next);
    last = absl::OkStatus();
    std::vector<TopRow> rows;
    std::vector<Seen> seen = Look(options.addresses, patience, deps);
    for (size_t i = 0; i < options.addresses.size(); ++i) {
      const Seen& now = seen[i];
      TopRow row;
      row.name = options.addresses[i];
      if (!now.sample.ok()) {
        row.error = last = now.sample.status();
      } else {
        // Without a view before, counters are of the server's whole life: none of them is shown.
        const TopSample& from = before[i].sample.ok() ? *before[i].sample : *now.sample;
        row.seconds = absl::ToDoubleSeconds(now.at - before[i].at);
        row.sample = Since(from, *now.sample);
      }
      rows.push_back(std::move(row));
    }
    before = std::move(seen);
    rows = WithSum(std::move(rows));
    if (options.format == TopFormat::kTerminal) out << "\x1b[H\x1b[2J";
    out << (options.format == TopFormat::kJson ? TopJson(rows) + "\n" : TopTable(rows)) << std::flush;
  }
  return last;
}

}  // namespace pleiad::cli
