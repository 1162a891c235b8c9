// Prometheus pages and values of theirs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pleiad::cli {

inline constexpr absl::Duration kScrapePatience = absl::Seconds(5);

// Whether it is HOST:PORT or [IPV6]:PORT, PORT from 1 to 65535.
bool IsMetricsAddress(absl::string_view address);

// http://ADDRESS/metrics with its HTTP head. Blocks for as long as the name takes to resolve, and then at most
// `patience`, all of the page included. InvalidArgument on an address that is none, Unavailable when nothing answers
// there, DeadlineExceeded when what is there has not answered in time.
absl::StatusOr<std::string> ScrapePage(const std::string& address, absl::Duration patience);

// The value of the metric without labels `name` on http://ADDRESS/metrics, with kScrapePatience. As ScrapePage, and
// NotFound without such a metric.
absl::StatusOr<double> ScrapeMetric(const std::string& address, const std::string& name);

}  // namespace pleiad::cli
