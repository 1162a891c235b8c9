// The /metrics page of a server, as a reader of it sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace pleiad::testing {

// What GET /metrics on the loopback interface says; empty when nobody answers.
std::string ScrapeMetrics(uint16_t port);

// The value of the sample `name`, labels included: "pleiad_sequences" or "x_total{a=\"b\"}". NaN when the page has
// none.
double MetricValue(const std::string& page, const std::string& name);

// Scrapes until `done` accepts the page; false when nobody answers any more.
bool AwaitMetrics(uint16_t port, const std::function<bool(const std::string& page)>& done);

}  // namespace pleiad::testing
