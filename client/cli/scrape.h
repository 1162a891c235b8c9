// A value of a Prometheus page.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pleiad::cli {

// The value of the metric without labels `name` on http://ADDRESS/metrics. `address`: HOST:PORT, [IPV6]:PORT. Blocks.
// InvalidArgument on a malformed address, Unavailable when nothing answers there, NotFound without such a metric.
absl::StatusOr<double> ScrapeMetric(const std::string& address, const std::string& name);

}  // namespace pleiad::cli
