#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <set>
#include <sstream>
#include <string>

namespace pleiad {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MetricsSnapshot Example(const RpcCounters* counters) {
  MetricsSnapshot snapshot;
  snapshot.info.layers = {1};
  snapshot.info.device = "cpu";
  snapshot.ready = true;
  snapshot.draining = true;
  snapshot.in_flight_limits = {.requests = 11, .bytes = 13};
  snapshot.max_sequences = 17;
  snapshot.taken_back = {.sequences = 19, .files_set_aside = 1};
  snapshot.regions = {.regions = 23, .bytes = 29, .pinned_bytes = 31};
  snapshot.load_ratio = 0.5;
  snapshot.rpcs = counters;
  snapshot.engine.tokens = {42};
  snapshot.info.device_memory.carries = 4096;
  snapshot.info.device_memory.pinned = 512;
  snapshot.engine.device_work = {.batches = 10, .graph_batches = 7, .capture_failures = 1, .busy_seconds = 2.5};
  snapshot.engine.rows.lookups = {{.hits = 5, .misses = 6, .joins = 7}};
  snapshot.engine.queue.counts[0] = 2;
  snapshot.engine.queue.counts[DurationHistogram::kBounds] = 1;
  snapshot.engine.queue.sum_seconds = 20;
  snapshot.process = ReadProcessStats();
  return snapshot;
}

std::string Scrape(const MetricsSnapshot& snapshot) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, CollectFamilies(snapshot));
  return out.str();
}

TEST(Metrics, AreExactlyThoseOfTheContract) {
  RpcCounters counters;
  std::set<std::string> names;
  for (const auto& family : CollectFamilies(Example(&counters))) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
  }
  const std::set<std::string> expected{"pleiad_rpc_requests_total",
                                       "pleiad_forward_items_total",
                                       "pleiad_sequences_refused_total",
                                       "pleiad_token_refusals_total",
                                       "pleiad_tls_certificate_expiry_seconds",
                                       "pleiad_tokens_total",
                                       "pleiad_batch_tokens",
                                       "pleiad_stream_requests_total",
                                       "pleiad_inflight_requests",
                                       "pleiad_inflight_bytes",
                                       "pleiad_inflight_requests_limit",
                                       "pleiad_inflight_bytes_limit",
                                       "pleiad_sequences_limit",
                                       "pleiad_state_sequences_taken_back",
                                       "pleiad_state_files_set_aside",
                                       "pleiad_regions",
                                       "pleiad_region_bytes",
                                       "pleiad_region_pinned_bytes",
                                       "pleiad_draining",
                                       "pleiad_step_phase_seconds",
                                       "pleiad_row_lookups_total",
                                       "pleiad_row_evictions_total",
                                       "pleiad_row_bypass_total",
                                       "pleiad_row_read_bytes_total",
                                       "pleiad_row_used_bytes_total",
                                       "pleiad_row_read_errors_total",
                                       "pleiad_row_reads_in_flight",
                                       "pleiad_row_plans_waiting",
                                       "pleiad_staging_free_rows",
                                       "pleiad_staging_quarantined_rows",
                                       "pleiad_row_read_seconds",
                                       "pleiad_arena_slots",
                                       "pleiad_sequences",
                                       "pleiad_sequences_opened_total",
                                       "pleiad_sequences_closed_total",
                                       "pleiad_prestage_total",
                                       "pleiad_ready",
                                       "pleiad_load_ratio",
                                       "pleiad_build_info",
                                       "pleiad_model_info",
                                       "pleiad_reader_info",
                                       "pleiad_device_info",
                                       "pleiad_device_busy_seconds_total",
                                       "pleiad_device_batches_total",
                                       "pleiad_device_capture_failures_total",
                                       "pleiad_device_memory_bytes",
                                       "process_cpu_seconds_total",
                                       "process_resident_memory_bytes",
                                       "process_virtual_memory_bytes",
                                       "process_threads",
                                       "process_open_fds",
                                       "process_max_fds",
                                       "process_start_time_seconds"};
  EXPECT_EQ(names, expected);
}

TEST(Metrics, CarryLabelsAndValues) {
  RpcCounters counters;
  counters.CountRpc(Rpc::kOpenSequence, absl::StatusCode::kResourceExhausted);
  counters.CountItem(1, absl::StatusCode::kOk);
  counters.CountItem(0, static_cast<absl::StatusCode>(77));
  counters.CountReceived(true);
  counters.CountSequenceRefusal(SequenceRefusal::kClient);
  counters.CountTokenRefusal(TokenRefusal::kUnknown);
  MetricsSnapshot snapshot = Example(&counters);
  snapshot.certificate =
      std::make_shared<const Certificate>(Certificate{.chain = "cert",
                                                      .key = "key",
                                                      .client_ca = "ca",
                                                      .chain_expiry = absl::FromUnixSeconds(1800000000),
                                                      .client_ca_expiry = absl::FromUnixSeconds(1900000000)});
  const std::string text = Scrape(snapshot);
  for (const char* line : {"pleiad_rpc_requests_total{rpc=\"OpenSequence\",code=\"RESOURCE_EXHAUSTED\"} 1\n",
                           "pleiad_forward_items_total{mode=\"prestage\",code=\"OK\"} 1\n",
                           "pleiad_stream_requests_total{thread=\"grpc\"} 0\n",
                           "pleiad_stream_requests_total{thread=\"spinning\"} 1\n",
                           "pleiad_sequences_refused_total{bound=\"sequences\"} 0\n",
                           "pleiad_sequences_refused_total{bound=\"client\"} 1\n",
                           "pleiad_token_refusals_total{reason=\"missing\"} 0\n",
                           "pleiad_token_refusals_total{reason=\"unknown\"} 1\n",
                           "pleiad_tls_certificate_expiry_seconds{file=\"tls-cert\"} 1800000000\n",
                           "pleiad_tls_certificate_expiry_seconds{file=\"tls-client-ca\"} 1900000000\n",
                           "pleiad_forward_items_total{mode=\"forward\",code=\"UNKNOWN\"} 1\n",
                           "pleiad_tokens_total{layer=\"1\"} 42\n",
                           "pleiad_device_busy_seconds_total 2.5\n",
                           "pleiad_device_batches_total{path=\"launches\"} 3\n",
                           "pleiad_device_batches_total{path=\"graph\"} 7\n",
                           "pleiad_device_capture_failures_total 1\n",
                           "pleiad_device_memory_bytes{kind=\"carries\"} 4096\n",
                           "pleiad_device_memory_bytes{kind=\"pinned\"} 512\n",
                           "pleiad_row_lookups_total{layer=\"1\",result=\"join\"} 7\n",
                           "pleiad_step_phase_seconds_count{phase=\"queue\"} 3\n",
                           "pleiad_step_phase_seconds_sum{phase=\"queue\"} 20\n",
                           "pleiad_step_phase_seconds_bucket{phase=\"queue\",le=\"1e-05\"} 2\n",
                           "pleiad_step_phase_seconds_bucket{phase=\"queue\",le=\"+Inf\"} 3\n",
                           "pleiad_ready 1\n",
                           "pleiad_draining 1\n",
                           "pleiad_inflight_requests_limit 11\n",
                           "pleiad_inflight_bytes_limit 13\n",
                           "pleiad_sequences_limit 17\n",
                           "pleiad_state_sequences_taken_back 19\n",
                           "pleiad_state_files_set_aside 1\n",
                           "pleiad_regions 23\n",
                           "pleiad_region_bytes 29\n",
                           "pleiad_region_pinned_bytes 31\n",
                           "pleiad_load_ratio 0.5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, AreThereWhileLoading) {
  RpcCounters counters;
  MetricsSnapshot snapshot;
  snapshot.rpcs = &counters;
  const std::string text = Scrape(snapshot);
  EXPECT_THAT(text, HasSubstr("pleiad_ready 0\n"));
  EXPECT_THAT(text, HasSubstr("pleiad_sequences 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("pleiad_tls_certificate_expiry_seconds{"))) << "without TLS";
  EXPECT_THAT(text, HasSubstr("# TYPE pleiad_tokens_total counter\n"));
}

TEST(ProcessStats, SaySomethingTrue) {
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 1u << 20);
  EXPECT_GE(stats.virtual_bytes, stats.resident_bytes);
  EXPECT_GE(stats.threads, 1u);
  EXPECT_GE(stats.open_fds, 3u);
  EXPECT_GE(stats.max_fds, stats.open_fds);
  EXPECT_GT(stats.start_time_seconds, 1.6e9);
  EXPECT_GT(MemAvailable(), 1u << 20);
}

}  // namespace
}  // namespace pleiad
