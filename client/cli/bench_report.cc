#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_load.h"

namespace pleiad::cli {
namespace {

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

double PerToken(const BenchReport& report, double seconds) {
  return report.tokens > 0 ? seconds / static_cast<double>(report.tokens) : 0;
}

}  // namespace

std::string ReportJson(const BenchReport& report, const BenchOptions& options, const client::ModelInfo& model) {
  nlohmann::json loads = nlohmann::json::array();
  for (const LoadReport& load : report.loads) {
    loads.push_back(
        {{"sequences", load.load.sequences},
         {"tokens_per_step", load.load.tokens_per_step},
         {"requests", load.requests},
         {"seconds", load.seconds},
         {"tokens_per_second", load.tokens_per_second},
         {"latency_us", {{"p50", load.p50_us}, {"p90", load.p90_us}, {"p99", load.p99_us}, {"max", load.max_us}}},
         {"hit_rate", load.hit_rate},
         {"mean_batch_tokens", load.mean_batch_tokens},
         {"mean_queue_us", load.mean_queue_us},
         {"mean_resolve_us", load.mean_resolve_us},
         {"mean_device_us", load.mean_device_us}});
  }
  nlohmann::json cpu = {{"client", PerToken(report, report.client_cpu_seconds)}};
  if (report.server_cpu_seconds.has_value()) cpu["server"] = PerToken(report, *report.server_cpu_seconds);
  const nlohmann::json json = {{"server_version", model.server_version},
                               {"model_id", model.model_id},
                               {"device", model.device},
                               {"table_mode", model.table_mode},
                               {"channels", model.channels},
                               {"sequences_per_request", options.sequences_per_request},
                               {"steps", options.steps},
                               {"warmup", options.warmup},
                               {"streams", options.streams},
                               {"transport", Name(options.transport)},
                               {"tensors", options.transport == Transport::kBf16Delta ? "BF16, DELTA" : "F32, HIGHWAY"},
                               {"rate", options.rate},
                               {"arrivals", options.arrivals == Arrivals::kFixed ? "fixed" : "poisson"},
                               {"replicas", options.replicas},
                               {"moves", report.moves},
                               {"tokens", report.tokens},
                               {"checksum", Hex(report.checksum)},
                               {"input_checksum", Hex(report.input_checksum)},
                               {"cpu_seconds_per_token", std::move(cpu)},
                               {"loads", std::move(loads)}};
  return json.dump(2);
}

std::string ReportTable(const BenchReport& report) {
  std::string table =
      absl::StrFormat("%9s %9s %9s %12s %10s %10s %10s %8s %9s %9s %9s %9s\n", "sequences", "tokens", "requests",
                      "tokens/s", "p50 us", "p90 us", "p99 us", "hits", "batch", "queue us", "resolve", "device us");
  for (const LoadReport& load : report.loads) {
    absl::StrAppendFormat(&table, "%9d %9d %9d %12.0f %10.1f %10.1f %10.1f %7.1f%% %9.1f %9.1f %9.1f %9.1f\n",
                          load.load.sequences, load.load.tokens_per_step, load.requests, load.tokens_per_second,
                          load.p50_us, load.p90_us, load.p99_us, 100 * load.hit_rate, load.mean_batch_tokens,
                          load.mean_queue_us, load.mean_resolve_us, load.mean_device_us);
  }
  absl::StrAppendFormat(&table, "CPU us/token: client %.2f", 1e6 * PerToken(report, report.client_cpu_seconds));
  if (report.server_cpu_seconds.has_value()) {
    absl::StrAppendFormat(&table, ", server %.2f", 1e6 * PerToken(report, *report.server_cpu_seconds));
  }
  absl::StrAppendFormat(&table, "; checksum %s, of the highways sent %s\n", Hex(report.checksum),
                        Hex(report.input_checksum));
  if (report.moves > 0) absl::StrAppendFormat(&table, "moved to another server %d times\n", report.moves);
  return table;
}

}  // namespace pleiad::cli
