// What `pleiad top` shows of servers: their metrics pages, twice, and what happened in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pleiad::cli {

// A histogram of Prometheus: observations up to each bound, in seconds.
struct TopHistogram {
  std::map<double, double> at_most;

  // As Prometheus has it: even within a bucket, the highest finite bound beyond it. None without observations.
  std::optional<double> Quantile(double q) const;
};

// Of one page: what stands now, and counters since the server's start.
struct TopSample {
  double ready = 0, draining = 0, load_ratio = 0;
  double sequences = 0, sequences_limit = 0, in_flight = 0, resident_bytes = 0;
  double start_time = 0;
  double tokens = 0, hits = 0, lookups = 0, reads = 0, read_errors = 0, busy_seconds = 0;
  TopHistogram queue, device, read;
};

// InvalidArgument where it is not the page of a pleiad-server.
absl::StatusOr<TopSample> ParseTopSample(absl::string_view page);

// `now` with the counters of the time since `before` alone; all of `now` where the server has started in between.
TopSample Since(const TopSample& before, TopSample now);

// One server, or the sum of several. With an error nothing is known.
struct TopRow {
  std::string name;
  absl::Status error;
  double seconds = 0;  // what the counters of `sample` are of
  TopSample sample;
};

// The last row is the sum where there are several servers that answer.
std::vector<TopRow> WithSum(std::vector<TopRow> rows);

std::string TopTable(const std::vector<TopRow>& rows);
// One line. What is not known is null.
std::string TopJson(const std::vector<TopRow>& rows);

enum class TopFormat : uint8_t { kTerminal, kText, kJson };

struct TopOptions {
  std::vector<std::string> addresses;  // HOST:PORT of metrics pages
  absl::Duration interval = absl::Seconds(1);
  TopFormat format = TopFormat::kText;
  std::optional<uint64_t> count;  // views to show; absent: until the process is ended
};

struct TopDeps {
  // A page, within `patience`; DeadlineExceeded where it does not come in time. Called for all servers at the same
  // time.
  std::function<absl::StatusOr<std::string>(const std::string& address, absl::Duration patience)> scrape;
  std::function<absl::Time()> now;  // from several threads
  std::function<void(absl::Time)> wait_until;
};

// Shows a view after each interval, the first after one; servers have an interval to answer, 5 s at most. Blocks. The
// status of a server that did not answer in the last view.
absl::Status Top(const TopOptions& options, const TopDeps& deps, std::ostream& out);

}  // namespace pleiad::cli
