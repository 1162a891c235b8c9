// A load on a server: every sequence (or group of sequences that share their requests) has one step in flight. Closed:
// the next one follows the answer. Open: steps arrive at a rate, whether or not the server keeps up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench_stream.h"
#include "client/client.h"

namespace pleiad::cli {

struct LoadGroup {
  uint32_t sequences = 64;
  uint32_t tokens_per_step = 1;
};

// "N:T": N sequences that step T tokens at a time.
absl::StatusOr<LoadGroup> ParseLoadGroup(const std::string& text);

enum class Arrivals : uint8_t { kPoisson, kFixed };

struct BenchOptions {
  LoadGroup load = {};
  std::vector<LoadGroup> beside = {};  // run as long as `load` does, and are reported beside it
  uint32_t sequences_per_request = 1;
  uint32_t steps = 100;  // measured, of each sequence of `load`
  uint32_t warmup = 10;  // steps before them that do not count
  uint32_t streams = 1;  // the groups are dealt over them in turn
  std::optional<uint32_t> layer_index = {};
  Transport transport = Transport::kInline;
  // Steps of `load` a second, all its sequences together, dealt over the requests in turn; one that finds its request's
  // step before unanswered waits, and its latency counts from its arrival. 0: closed.
  double rate = 0;
  Arrivals arrivals = Arrivals::kPoisson;
  std::string address = {};                // of the server, for kEcho
  std::string shm_dir = "/dev/shm";        // of the server, for kShm
  std::string metrics = {};                // HOST:PORT of the server's metrics, for its CPU time; empty: not asked
  client::ClientOptions access = {};       // TLS and token of `replicas`
  std::vector<std::string> replicas = {};  // of several servers, each stream a client of its own with failover
  std::string affinity = "bench";          // their key, with /N behind it where there are several streams
  uint32_t seed = 1;                       // of tokens, highways and arrivals

  absl::Status Validate() const;
};

struct LoadReport {
  LoadGroup load = {};
  uint64_t requests = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double p50_us = 0, p90_us = 0, p99_us = 0, max_us = 0;              // of a request, from arrival to callback
  double hit_rate = 0;                                                // hits / rows; 0 without rows
  double mean_batch_tokens = 0;                                       // of the batches the requests ran in
  double mean_queue_us = 0, mean_resolve_us = 0, mean_device_us = 0;  // as the server tells
};

struct BenchReport {
  std::vector<LoadReport> loads;  // `load`, then `beside`
  // Of all loads, warm-up included.
  uint64_t tokens = 0;
  uint64_t moves = 0;  // of streams from one replica to another
  double client_cpu_seconds = 0;
  std::optional<double> server_cpu_seconds = {};  // with `metrics`
  // MarkSums of what came back and of the highways that were sent, added up over all steps. Equal where nothing is done
  // to them; the same in every run of a closed load with a seed.
  uint64_t checksum = 0;
  uint64_t input_checksum = 0;
};

// The first failure of a step ends the run with its status.
absl::StatusOr<BenchReport> RunBench(client::Client* client, const BenchOptions& options);

// Nearest rank of `sorted`, 0 < p <= 100: the smallest value that p percent do not exceed. 0 when empty.
double Percentile(const std::vector<double>& sorted, double p);

std::string ReportJson(const BenchReport& report, const BenchOptions& options, const client::ModelInfo& model);
std::string ReportTable(const BenchReport& report);

}  // namespace pleiad::cli
