// Everything Prometheus sees, made from plain snapshots at each scrape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/engine_stats.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/admission.h"
#include "server/certificate_files.h"
#include "server/listener.h"
#include "server/process_stats.h"
#include "server/regions.h"
#include "server/rpc_counters.h"
#include "server/sequence_keeper.h"

namespace prometheus {
class Exposer;
}

namespace pleiad {

// Labels of the *_info metrics; empty where not known yet.
struct MetricsInfo {
  std::string version;
  std::string model_id, table_mode, row_dtype;
  std::string reader, reader_detail;
  std::string device, device_detail;
  DeviceMemory device_memory;
  std::vector<uint32_t> layers;  // [layers], zero-based decoder layers, as EngineStats orders them
};

struct MetricsSnapshot {
  MetricsInfo info;
  bool ready = false;
  bool draining = false;
  double load_ratio = 0;
  EngineStats engine;  // empty while loading
  const RpcCounters* rpcs = nullptr;
  std::shared_ptr<const Certificate> certificate;  // null without TLS
  AdmissionLimits in_flight;
  AdmissionLimits in_flight_limits;
  uint32_t max_sequences = 0;
  TakenBack taken_back;  // from --state-dir
  RegionTable::Stats regions;
  ProcessStats process;
};

std::vector<prometheus::MetricFamily> CollectFamilies(const MetricsSnapshot& snapshot);

// An HTTP listener that serves /metrics on two threads of its own, until it is destroyed.
class MetricsListener {
 public:
  // `collectable` is asked at each scrape. Unavailable when the address cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Create(const ListenAddress& address,
                                                                 std::shared_ptr<prometheus::Collectable> collectable);
  ~MetricsListener();

  // With the port that was chosen.
  const ListenAddress& address() const { return address_; }

 private:
  MetricsListener() = default;

  ListenAddress address_;
  std::shared_ptr<prometheus::Collectable> collectable_;  // the exposer holds it weakly
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace pleiad
