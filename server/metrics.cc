#include "server/metrics.h"

#include <netdb.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  // Further values go to the family begun last.
  void Begin(std::string name, std::string help, MetricType type) {
    families_.push_back({std::move(name), std::move(help), type, {}});
  }
  void Add(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Add(uint64_t value, Labels labels = {}) { Add(static_cast<double>(value), std::move(labels)); }

  // `bound(i)` is the upper bound of counts[i]; the last count has none.
  template <size_t kCounts, typename Bound>
  void AddHistogram(const std::array<uint64_t, kCounts>& counts, double sum, Bound bound, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < kCounts; ++i) {
      cumulative += counts[i];
      const double upper = i + 1 < kCounts ? bound(static_cast<int>(i)) : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, upper});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = sum;
    families_.back().metric.push_back(std::move(metric));
  }

  void Counter(std::string name, std::string help, double value) {
    Begin(std::move(name), std::move(help), MetricType::Counter);
    Add(value);
  }
  void Counter(std::string name, std::string help, uint64_t value) {
    Counter(std::move(name), std::move(help), static_cast<double>(value));
  }
  void Gauge(std::string name, std::string help, double value) {
    Begin(std::move(name), std::move(help), MetricType::Gauge);
    Add(value);
  }
  void Gauge(std::string name, std::string help, uint64_t value) {
    Gauge(std::move(name), std::move(help), static_cast<double>(value));
  }
  void Info(std::string name, std::string help, Labels labels) {
    Begin(std::move(name), std::move(help), MetricType::Gauge);
    Add(1.0, std::move(labels));
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

std::string CodeName(size_t code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

void AddRpcs(const RpcCounters& counters, Families& out) {
  out.Begin("pleiad_rpc_requests_total", "Finished RPCs", MetricType::Counter);
  for (size_t rpc = 0; rpc < kRpcNames.size(); ++rpc) {
    for (size_t code = 0; code < kCodes; ++code) {
      const uint64_t count = counters.rpcs(rpc, code);
      if (count > 0 || code == 0) out.Add(count, {{"rpc", kRpcNames[rpc]}, {"code", CodeName(code)}});
    }
  }
  out.Begin("pleiad_forward_items_total", "Answered Forward requests, unary and on streams", MetricType::Counter);
  for (size_t mode = 0; mode < kModeNames.size(); ++mode) {
    for (size_t code = 0; code < kCodes; ++code) {
      const uint64_t count = counters.items(mode, code);
      if (count > 0 || code == 0) out.Add(count, {{"mode", kModeNames[mode]}, {"code", CodeName(code)}});
    }
  }
  out.Begin("pleiad_stream_requests_total", "Requests received on streams, by the thread that did",
            MetricType::Counter);
  for (size_t by = 0; by < kReceiverNames.size(); ++by)
    out.Add(counters.received(by), {{"thread", kReceiverNames[by]}});
  out.Begin("pleiad_sequences_refused_total", "New sequences refused, by the bound they met", MetricType::Counter);
  for (size_t why = 0; why < kSequenceRefusalNames.size(); ++why) {
    out.Add(counters.sequence_refusals(why), {{"bound", kSequenceRefusalNames[why]}});
  }
  out.Begin("pleiad_token_refusals_total", "Calls refused for want of a token", MetricType::Counter);
  for (size_t why = 0; why < kTokenRefusalNames.size(); ++why) {
    out.Add(counters.token_refusals(why), {{"reason", kTokenRefusalNames[why]}});
  }
}

void AddCertificate(const Certificate* certificate, Families& out) {
  out.Begin("pleiad_tls_certificate_expiry_seconds", "When certificates in use expire, since the epoch",
            MetricType::Gauge);
  if (certificate == nullptr) return;
  const auto seconds = [](absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); };
  out.Add(seconds(certificate->chain_expiry), {{"file", "tls-cert"}});
  if (!certificate->client_ca.empty()) {
    out.Add(seconds(certificate->client_ca_expiry), {{"file", "tls-client-ca"}});
  }
}

void AddSteps(const MetricsSnapshot& snapshot, Families& out) {
  const EngineStats& stats = snapshot.engine;
  out.Begin("pleiad_tokens_total", "Committed tokens", MetricType::Counter);
  for (size_t i = 0; i < stats.tokens.size() && i < snapshot.info.layers.size(); ++i) {
    out.Add(stats.tokens[i], {{"layer", absl::StrCat(snapshot.info.layers[i])}});
  }
  out.Begin("pleiad_batch_tokens", "Tokens of a batch", MetricType::Histogram);
  out.AddHistogram(stats.batch_tokens.counts, stats.batch_tokens.sum, TokenHistogram::Bound);
  out.Begin("pleiad_step_phase_seconds", "Time of a step in a phase", MetricType::Histogram);
  for (const auto& [phase, histogram] :
       {std::pair{"queue", &stats.queue}, {"resolve", &stats.resolve}, {"device", &stats.device}}) {
    out.AddHistogram(histogram->counts, histogram->sum_seconds, DurationHistogram::BoundSeconds, {{"phase", phase}});
  }
  out.Gauge("pleiad_sequences", "Open sequences", stats.sequences);
  out.Counter("pleiad_sequences_opened_total", "Sequences opened", stats.sequences_opened);
  out.Begin("pleiad_sequences_closed_total", "Sequences closed", MetricType::Counter);
  out.Add(stats.closed_released, {{"reason", "released"}});
  out.Add(stats.closed_expired, {{"reason", "expired"}});
  out.Add(stats.closed_stopped, {{"reason", "stopped"}});
  out.Begin("pleiad_prestage_total", "Prestages by what became of them", MetricType::Counter);
  out.Add(stats.prestage_used, {{"result", "used"}});
  out.Add(stats.prestage_partly_used, {{"result", "partly_used"}});
  out.Add(stats.prestage_dropped, {{"result", "dropped"}});
  out.Add(stats.prestage_yielded, {{"result", "yielded"}});
}

void AddRows(const MetricsSnapshot& snapshot, Families& out) {
  const RowStoreStats& rows = snapshot.engine.rows;
  out.Begin("pleiad_row_lookups_total", "Row ids resolved", MetricType::Counter);
  for (size_t i = 0; i < rows.lookups.size() && i < snapshot.info.layers.size(); ++i) {
    const std::string layer = absl::StrCat(snapshot.info.layers[i]);
    out.Add(rows.lookups[i].hits, {{"layer", layer}, {"result", "hit"}});
    out.Add(rows.lookups[i].misses, {{"layer", layer}, {"result", "miss"}});
    out.Add(rows.lookups[i].joins, {{"layer", layer}, {"result", "join"}});
  }
  out.Counter("pleiad_row_evictions_total", "Rows evicted from the arena", rows.evictions);
  out.Counter("pleiad_row_bypass_total", "Rows gathered from staging for want of a slot", rows.bypasses);
  out.Counter("pleiad_row_read_bytes_total", "Bytes read from the table's files", rows.read_bytes);
  out.Counter("pleiad_row_used_bytes_total", "Of the bytes read, those of rows asked for", rows.used_bytes);
  out.Counter("pleiad_row_read_errors_total", "Row reads that failed", rows.read_errors);
  out.Begin("pleiad_row_read_seconds", "Time of a row read while serving", MetricType::Histogram);
  out.AddHistogram(rows.read_seconds.counts, rows.read_seconds.sum_seconds, DurationHistogram::BoundSeconds);
  out.Gauge("pleiad_row_reads_in_flight", "Row reads under way", rows.reads_in_flight);
  out.Gauge("pleiad_row_plans_waiting", "Steps whose rows wait for staging", rows.plans_waiting);
  out.Gauge("pleiad_staging_free_rows", "Staging rows that nobody uses", rows.staging_free);
  out.Gauge("pleiad_staging_quarantined_rows", "Staging rows of reads that timed out and have not ended",
            rows.staging_quarantined);
  out.Begin("pleiad_arena_slots", "Slots of the arena", MetricType::Gauge);
  out.Add(rows.slots_free, {{"state", "free"}});
  out.Add(rows.slots_arriving, {{"state", "arriving"}});
  out.Add(rows.slots_idle, {{"state", "idle"}});
  out.Add(rows.slots_held, {{"state", "held"}});
}

void AddDevice(const MetricsSnapshot& snapshot, Families& out) {
  const DeviceStats& device = snapshot.engine.device_work;
  out.Counter("pleiad_device_busy_seconds_total", "Time in which batches ran on the device", device.busy_seconds);
  out.Begin("pleiad_device_batches_total", "Batches run on the device", MetricType::Counter);
  out.Add(device.batches - device.graph_batches, {{"path", "launches"}});
  out.Add(device.graph_batches, {{"path", "graph"}});
  out.Counter("pleiad_device_capture_failures_total", "Graphs that could not be captured", device.capture_failures);
  const DeviceMemory& memory = snapshot.info.device_memory;
  out.Begin("pleiad_device_memory_bytes", "Memory the device has allocated", MetricType::Gauge);
  for (const auto& [kind, bytes] : {std::pair{"arena", memory.arena},
                                    {"staging", memory.staging},
                                    {"carries", memory.carries},
                                    {"weights", memory.weights},
                                    {"scratch", memory.scratch},
                                    {"pinned", memory.pinned}}) {
    out.Add(bytes, {{"kind", kind}});
  }
}

void AddProcess(const ProcessStats& process, Families& out) {
  out.Counter("process_cpu_seconds_total", "User and system time", process.cpu_seconds);
  out.Gauge("process_resident_memory_bytes", "Resident memory", process.resident_bytes);
  out.Gauge("process_virtual_memory_bytes", "Virtual memory", process.virtual_bytes);
  out.Gauge("process_threads", "Threads", process.threads);
  out.Gauge("process_open_fds", "Open file descriptors", process.open_fds);
  out.Gauge("process_max_fds", "Limit of open file descriptors", process.max_fds);
  out.Gauge("process_start_time_seconds", "Start, since the epoch", process.start_time_seconds);
}

// Connects and hangs up, whether it works or not.
void Connect(const ListenAddress& address) {
  std::string host = address.host;
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) return;
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  [[maybe_unused]] const int result = ::connect(fd.get(), found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
}

}  // namespace

std::vector<MetricFamily> CollectFamilies(const MetricsSnapshot& snapshot) {
  Families out;
  const MetricsInfo& info = snapshot.info;
  out.Gauge("pleiad_ready", "1 while serving", uint64_t{snapshot.ready ? 1u : 0u});
  out.Gauge("pleiad_draining", "1 from SIGTERM to the end", uint64_t{snapshot.draining ? 1u : 0u});
  out.Gauge("pleiad_load_ratio", "Part of the start-up done, 0 to 1", snapshot.load_ratio);
  out.Info("pleiad_build_info", "The server", {{"version", info.version}});
  out.Info("pleiad_model_info", "The model",
           {{"model_id", info.model_id}, {"table", info.table_mode}, {"row_dtype", info.row_dtype}});
  out.Info("pleiad_reader_info", "The row reader", {{"name", info.reader}, {"detail", info.reader_detail}});
  out.Info("pleiad_device_info", "The device", {{"name", info.device}, {"detail", info.device_detail}});
  AddDevice(snapshot, out);
  if (snapshot.rpcs != nullptr) AddRpcs(*snapshot.rpcs, out);
  AddCertificate(snapshot.certificate.get(), out);
  out.Gauge("pleiad_inflight_requests", "Requests in flight", snapshot.in_flight.requests);
  out.Gauge("pleiad_inflight_bytes", "Bytes reserved for requests in flight and their answers",
            snapshot.in_flight.bytes);
  out.Gauge("pleiad_inflight_requests_limit", "Requests in flight that are admitted",
            snapshot.in_flight_limits.requests);
  out.Gauge("pleiad_inflight_bytes_limit", "Bytes in flight that are admitted", snapshot.in_flight_limits.bytes);
  out.Gauge("pleiad_sequences_limit", "Sequences that can be open", uint64_t{snapshot.max_sequences});
  out.Gauge("pleiad_state_sequences_taken_back", "Sequences of the last run that this one took back from --state-dir",
            snapshot.taken_back.sequences);
  out.Gauge("pleiad_state_files_set_aside", "Files of --state-dir that this run could not take back and set aside",
            snapshot.taken_back.files_set_aside);
  out.Gauge("pleiad_regions", "Regions that clients have attached", snapshot.regions.regions);
  out.Gauge("pleiad_region_bytes", "Bytes of those regions", snapshot.regions.bytes);
  out.Gauge("pleiad_region_pinned_bytes", "Bytes of files whose pages the device holds", snapshot.regions.pinned_bytes);
  AddSteps(snapshot, out);
  AddRows(snapshot, out);
  AddProcess(snapshot.process, out);
  return out.Take();
}

MetricsListener::~MetricsListener() {
  // The exposer's thread looks up only every two seconds, or when somebody connects.
  std::promise<void> stopped;
  std::thread stopper([this, &stopped] {
    exposer_.reset();
    stopped.set_value();
  });
  const std::future<void> future = stopped.get_future();
  while (future.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) Connect(address_);
  stopper.join();
}

// A connection keeps a thread until it sends something or times out.
constexpr char kThreads[] = "16";
constexpr char kRequestTimeoutMs[] = "10000";

absl::StatusOr<std::unique_ptr<MetricsListener>> MetricsListener::Create(
    const ListenAddress& address, std::shared_ptr<prometheus::Collectable> collectable) {
  std::unique_ptr<MetricsListener> listener(new MetricsListener);
  listener->address_ = address;
  listener->collectable_ = std::move(collectable);
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  try {
    listener->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", absl::StrCat(host, ":", address.port), "num_threads", kThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
    listener->exposer_->RegisterCollectable(listener->collectable_);
    const std::vector<int> ports = listener->exposer_->GetListeningPorts();
    if (!ports.empty()) listener->address_.port = static_cast<uint16_t>(ports.front());
  } catch (const std::exception& error) {
    const std::string why = WhyNotListen(address);
    return absl::UnavailableError(
        absl::StrCat("--metrics-listen ", address.ToString(), ": cannot listen: ", why.empty() ? error.what() : why));
  }
  return listener;
}

}  // namespace pleiad
