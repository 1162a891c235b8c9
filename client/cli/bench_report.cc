#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_load.h"

namespace pleiad::cli {

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
  const nlohmann::json json = {{"server_version", model.server_version},
                               {"model_id", model.model_id},
                               {"device", model.device},
                               {"table_mode", model.table_mode},
                               {"channels", model.channels},
                               {"sequences_per_request", options.sequences_per_request},
                               {"steps", options.steps},
                               {"warmup", options.warmup},
                               {"streams", options.streams},
                               {"tensors", options.delta_bf16 ? "BF16, DELTA" : "F32, HIGHWAY"},
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
  return table;
}

}  // namespace pleiad::cli
