// Prometheus pages and values of theirs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pleiad::cli {

// http://ADDRESS/metrics with its HTTP head. `address`: HOST:PORT, [IPV6]:PORT. Blocks, at most 5 s for a connection
// and for each piece of the page. InvalidArgument on a malformed address, Unavailable when nothing answers there.
absl::StatusOr<std::string> ScrapePage(const std::string& address);

// The value of the metric without labels `name` on http://ADDRESS/metrics. `address`: HOST:PORT, [IPV6]:PORT. Blocks.
// InvalidArgument on a malformed address, Unavailable when nothing answers there, NotFound without such a metric.
absl::StatusOr<double> ScrapeMetric(const std::string& address, const std::string& name);

}  // namespace pleiad::cli
