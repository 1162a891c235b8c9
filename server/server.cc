#include "server/server.h"

#include <cstdlib>
#include <utility>

#include "core/base/status_macros.h"
#include "server/file_limit.h"
#include "server/load_reporter.h"
#include "server/log.h"

namespace pleiad {

class Server::Collector final : public prometheus::Collectable {
 public:
  explicit Collector(const Server* server) : server_(server) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return CollectFamilies(server_->Snapshot()); }

 private:
  const Server* const server_;
};

Server::Server(const ServerFlags& flags, ServerDeps deps, ModelSummary summary, const ServiceLimits& limits,
               std::unique_ptr<RegionTable> regions)
    : flags_(flags),
      clock_(deps.clock != nullptr ? deps.clock : Clock::Real()),
      loader_(std::move(deps.loader)),
      on_ready_(std::move(deps.on_ready)),
      hard_exit_(deps.hard_exit ? std::move(deps.hard_exit)
                                : [this] { std::_Exit(keeping_ ? kExitStateLost : kExitUnanswered); }),
      summary_(std::move(summary)),
      state_(limits, clock_, std::move(regions), flags.access) {
  metrics_info_.version = kServerVersion;
  for (const LayerSummary& layer : summary_.layers) metrics_info_.layers.push_back(layer.index.value());
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerFlags& flags, ServerDeps deps) {
  std::vector<ListenAddress> addresses;
  for (const std::string& text : flags.listen) {
    PLEIAD_ASSIGN_OR_RETURN(addresses.emplace_back(), ParseListenAddress(text));
  }
  std::unique_ptr<SequenceKeeper> keeper;
  if (!flags.state_dir.empty()) {
    PLEIAD_ASSIGN_OR_RETURN(keeper, SequenceKeeper::Open(flags.state_dir));
  }
  PLEIAD_ASSIGN_OR_RETURN(const ListenAddress metrics_address, ParseListenAddress(flags.metrics_listen));
  PLEIAD_ASSIGN_OR_RETURN(ModelSummary summary, deps.loader->Open());
  PLEIAD_ASSIGN_OR_RETURN(const ServiceLimits limits, ComputeLimits(flags, summary.config.geometry.channels()));
  std::unique_ptr<RegionTable> regions;
  if (flags.allow_client_regions) {
    PLEIAD_ASSIGN_OR_RETURN(
        regions, RegionTable::Open(flags.shm_dir, RegionLimits::Within(OpenFileLimit(), flags.shm_pinned_bytes)));
  }
  const GenericServiceFactory make_generic = std::move(deps.make_generic);
  std::unique_ptr<Server> server(new Server(flags, std::move(deps), std::move(summary), limits, std::move(regions)));
  server->keeper_ = std::move(keeper);
  PLEIAD_ASSIGN_OR_RETURN(server->metrics_,
                          MetricsListener::Create(metrics_address, std::make_shared<Collector>(server.get())));
  const ReflectionScope reflection =
      flags.reflection ? ReflectionScope::kAllListeners : ReflectionScope::kLocalListeners;
  PLEIAD_ASSIGN_OR_RETURN(server->listeners_, GrpcListeners::Open(addresses, flags.access, reflection, &server->state_,
                                                                  &server->health_, make_generic));
  for (const ListenAddress& address : server->listeners_->addresses()) {
    const bool tls = !flags.access.tls_cert.empty() && !address.is_unix();
    spdlog::info("listening on {}, {}, {}, reflection {}", address.ToString(),
                 !tls                                 ? "plaintext"
                 : flags.access.tls_client_ca.empty() ? "TLS"
                                                      : "mutual TLS",
                 flags.access.auth_tokens.empty() ? "no tokens" : "tokens",
                 flags.reflection || address.is_local() ? "on" : "off (--reflection turns it on)");
  }
  if (server->listeners_->health_address()) {
    spdlog::info("health alone on {}", server->listeners_->health_address()->ToString());
  }
  spdlog::info("metrics on {}", server->metrics_->address().ToString());
  server->loading_ = std::thread([raw = server.get()] { raw->Load(); });
  return server;
}

Server::~Server() {
  if (loading_.joinable()) {
    cancel_load_.store(true);
    loading_.join();
  }
  metrics_.reset();
  listeners_.reset();
}

ReadyInfo Server::addresses() const {
  return {.addresses = listeners_->addresses(), .health = listeners_->health_address(), .metrics = metrics_->address()};
}

absl::StatusOr<LoadedModel> Server::RunLoader() {
  LoadReporter reporter(LoadReporter::DetectStyle());
  LoadHooks hooks;
  hooks.on_progress = [this, &reporter](const LoadProgress& progress) {
    if (progress.bytes_total > 0) {
      load_ratio_.store(static_cast<double>(progress.bytes_read) / static_cast<double>(progress.bytes_total));
    }
    reporter.Report(progress);
  };
  hooks.on_table_health = [this](const absl::Status& status) {
    if (status.ok()) {
      spdlog::info("the table is readable again");
    } else {
      spdlog::error("the table is unreadable, not serving: {}", status.ToString());
    }
    health_.SetTable(status.ok() ? TableHealth::kReadable : TableHealth::kUnreadable);
  };
  hooks.cancelled = [this] { return cancel_load_.load(); };
  return loader_->Load(hooks);
}

void Server::Load() {
  absl::StatusOr<LoadedModel> loaded = RunLoader();
  absl::Status status = loaded.status();
  // A server that is to stop already leaves the file to the next one.
  if (status.ok() && keeper_ != nullptr && !cancel_load_.load()) {
    const auto on_taken = [this](KeptSequence& kept) {
      state_.failures.Named(kept.id.value(), kept.label);
      if (kept.owner.empty()) return;  // kept by a version that did not say
      if (const std::shared_ptr<Client> client = state_.clients.Named(kept.owner)) {
        kept.place = Client::KeepSequence(client);
      }
    };
    status = keeper_->TakeBack(*loaded->engine, on_taken, [this] { return cancel_load_.load(); });
  }
  if (status.ok()) Publish(*std::move(loaded));
  MutexLock lock(&mutex_);
  loaded_ = status;
  changed_.NotifyAll();
}

void Server::Publish(LoadedModel loaded) {
  engine_ = std::move(loaded.engine);
  engine_->NotifyDeviceLost([this](const absl::Status& status) {
    spdlog::error("device lost: {}", status.ToString());
    health_.Set(Readiness::kNotServing);
    MutexLock lock(&mutex_);
    device_lost_ = true;
    changed_.NotifyAll();
  });
  if (!flags_.state_dir.empty() && std::string(engine_->table_mode()) == "cached") {
    std::vector<uint64_t> table_rows;
    for (const LayerSummary& layer : summary_.layers) table_rows.push_back(layer.rows);
    warm_ = std::make_unique<WarmStart>(engine_.get(), flags_.state_dir, std::move(table_rows));
  }
  state_.SetServing(engine_.get(), DescribeModel(*engine_), flags_);
  load_ratio_.store(1);
  spdlog::info("model {} loaded on {} ({}), table {}", engine_->model().model_id, engine_->device_info().name,
               engine_->device_info().detail, engine_->table_mode());
  bool draining;
  {
    MutexLock lock(&mutex_);
    metrics_info_.model_id = engine_->model().model_id;
    metrics_info_.table_mode = engine_->table_mode();
    metrics_info_.row_dtype = summary_.layers.empty() ? "" : summary_.layers.front().row_dtype;
    metrics_info_.reader = loaded.reader.name;
    metrics_info_.reader_detail = loaded.reader.detail;
    metrics_info_.device = engine_->device_info().name;
    metrics_info_.device_detail = engine_->device_info().detail;
    metrics_info_.device_memory = engine_->device_info().memory;
    draining = draining_since_.has_value();
    // Under the lock, so that Terminate comes before or after.
    if (!draining && !device_lost_) health_.Set(Readiness::kServing);
    if (!draining && warm_ != nullptr) warm_->Start();
    loaded_ = absl::OkStatus();
  }
  if (draining) {
    StartEngineDraining();
    return;
  }
  if (on_ready_) on_ready_(addresses());
}

void Server::StartEngineDraining() {
  engine_->StartDraining();
  if (warm_ != nullptr) warm_->Save();
  engine_->NotifyWhenIdle([this] {
    MutexLock lock(&mutex_);
    idle_ = true;
    changed_.NotifyAll();
  });
}

v1::GetModelResponse Server::DescribeModel(const Engine& engine) const {
  const ModelConfig& config = engine.model().config;
  const Geometry& from = config.geometry;
  v1::GetModelResponse model;
  model.set_model_id(engine.model().model_id);
  model.set_server_version(kServerVersion);
  for (const char* capability : {"f32", "bf16", "delta", "prestage", "lookup", "rollback"}) {
    model.add_capabilities(capability);
  }
  if (state_.regions() != nullptr) {
    model.add_capabilities("shm-file");
    if (!engine.device_info().gpu_uuid.empty()) model.add_capabilities("cuda-ipc");
  }
  v1::Geometry* geometry = model.mutable_geometry();
  geometry->set_hidden_size(from.hidden_size);
  geometry->set_hc_count(from.hc_count);
  geometry->set_ple_embed_dim(from.embed_dim);
  geometry->set_ple_conv_kernel_size(from.conv_kernel_size);
  geometry->set_ngram_size(from.ngram_size);
  geometry->set_heads_per_ngram(from.heads_per_ngram);
  geometry->set_head_dim(from.head_dim());
  geometry->set_channels(from.channels());
  geometry->set_state_len(from.state_len());
  geometry->set_rms_norm_eps(from.rms_norm_eps);
  model.set_vocab_size(config.vocab_size);
  model.set_eos_token_id(config.eos_token_id);
  if (config.image_token_id) model.set_image_token_id(*config.image_token_id);
  if (config.video_token_id) model.set_video_token_id(*config.video_token_id);
  for (const LayerSummary& layer : summary_.layers) {
    v1::LayerInfo* info = model.add_layers();
    info->set_layer_index(layer.index.value());
    info->set_rows(layer.rows);
    info->set_row_dtype(layer.row_dtype);
    info->set_aux_bytes(from.aux_bytes());
  }
  const ServiceLimits& limits = state_.limits();
  model.mutable_limits()->set_max_tokens(limits.max_tokens);
  model.mutable_limits()->set_max_sequences(limits.max_sequences);
  model.mutable_limits()->set_rollback_tokens(limits.rollback_tokens);
  model.mutable_limits()->set_max_message_bytes(limits.max_message_bytes);
  model.set_device(engine.device_info().name);
  model.set_table_mode(engine.table_mode());
  return model;
}

MetricsSnapshot Server::Snapshot() const {
  MetricsSnapshot snapshot;
  {
    MutexLock lock(&mutex_);
    snapshot.info = metrics_info_;
    snapshot.draining = draining_since_.has_value();
  }
  snapshot.ready = health_.serving();
  snapshot.load_ratio = load_ratio_.load();
  {
    MutexLock lock(&stats_mutex_);
    if (!engine_gone_ && state_.engine() != nullptr) snapshot.engine = state_.engine()->stats();
    if (keeper_ != nullptr) snapshot.taken_back = keeper_->counts();
  }
  snapshot.rpcs = &state_.counters;
  snapshot.certificate = state_.certificate();
  if (state_.regions() != nullptr) snapshot.regions = state_.regions()->stats();
  snapshot.in_flight = state_.admission.used();
  const ServiceLimits& limits = state_.limits();
  snapshot.in_flight_limits = {.requests = limits.inflight_requests, .bytes = limits.inflight_bytes};
  snapshot.max_sequences = limits.max_sequences;
  snapshot.process = ReadProcessStats();
  return snapshot;
}

absl::Status Server::CheckLive(absl::Duration timeout) const {
  PLEIAD_RETURN_IF_ERROR(listeners_->CheckLive(timeout));
  Snapshot();
  return absl::OkStatus();
}

absl::Status Server::WaitUntilLoaded() {
  MutexLock lock(&mutex_);
  while (!loaded_) changed_.Wait(&mutex_);
  return *loaded_;
}

void Server::Terminate() {
  bool loaded;
  {
    MutexLock lock(&mutex_);
    if (draining_since_) {
      spdlog::info("stopping at once");
      stop_now_ = true;
      changed_.NotifyAll();
      return;
    }
    spdlog::info("draining, at most {}", absl::FormatDuration(flags_.drain_timeout));
    draining_since_ = clock_->Now();
    loaded = loaded_.has_value() && loaded_->ok();
    drain_begins_ = loaded;
    cancel_load_.store(true);
    state_.SetDraining();
    health_.Set(Readiness::kNotServing);
    changed_.NotifyAll();
  }
  if (!loaded) return;
  StartEngineDraining();
  MutexLock lock(&mutex_);
  drain_begins_ = false;
  changed_.NotifyAll();
}

int Server::Wait() {
  int exit_code = kExitDrained;
  {
    MutexLock lock(&mutex_);
    while (true) {
      if (device_lost_) {
        exit_code = kExitDeviceLost;
        break;
      }
      if (loaded_ && !loaded_->ok()) {
        if (!draining_since_) {
          spdlog::error("refused to start: {}", loaded_->ToString());
          exit_code = kExitRefused;
        }
        break;
      }
      if (stop_now_ || idle_) break;
      if (!draining_since_) {
        changed_.Wait(&mutex_);
        continue;
      }
      const absl::Time deadline = *draining_since_ + flags_.drain_timeout;
      if (clock_->Now() >= deadline) {
        // With --state-dir clients need not have gone.
        spdlog::log(keeper_ != nullptr ? spdlog::level::info : spdlog::level::warn, "the drain timeout has passed");
        break;
      }
      clock_->WaitUntil(&changed_, &mutex_, deadline);
    }
    // Terminate still needs what Stop destroys.
    while (drain_begins_) changed_.Wait(&mutex_);
  }
  return Stop(exit_code);
}

int Server::Stop(int exit_code) {
  LimitStop(keeper_ != nullptr ? kSettleLimit + kBegunLimit : kStopLimit);
  std::thread watchdog([this] {
    MutexLock lock(&mutex_);
    while (!stopped_) {
      if (clock_->Now() >= stop_limit_) {
        spdlog::critical("stopping takes longer than it may: giving up");
        spdlog::default_logger()->flush();
        if (keeping_) keeper_->Abandon();
        hard_exit_();
        return;
      }
      clock_->WaitUntil(&changed_, &mutex_, stop_limit_);
    }
  });
  health_.Set(Readiness::kNotServing);
  state_.SetDraining();
  state_.SetStopping();
  state_.EndStreams();
  cancel_load_.store(true);
  loading_.join();
  if (warm_ != nullptr) warm_->Stop();
  // After a restart in place clients go on with the next step: those that were admitted are to be answered.
  if (keeper_ != nullptr) {
    state_.WaitForCalls(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kSettleLimit));
  }
  const uint64_t unanswered = engine_ != nullptr ? engine_->Stop() : 0;
  if (unanswered > 0 && exit_code == kExitDrained) exit_code = kExitUnanswered;
  health_.EndWatches();
  // gRPC's own wait also waits for clients that hold an idle connection open.
  state_.WaitForCalls(std::chrono::steady_clock::now() + std::chrono::seconds(1));
  listeners_->Shutdown(std::chrono::system_clock::now());
  {
    MutexLock lock(&stats_mutex_);
    engine_gone_ = true;
  }
  if (keeper_ != nullptr && engine_ != nullptr) exit_code = KeepSequences(exit_code);
  // Under the limit too: a read that never ends keeps its reader from being destroyed.
  warm_.reset();
  engine_.reset();
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  watchdog.join();
  // Not under the limit: an idle connection to the metrics page alone makes this take two seconds.
  metrics_.reset();
  {
    MutexLock lock(&stats_mutex_);
    keeper_.reset();
  }
  spdlog::info("stopped: {} admitted step(s) not run, exit code {}", unanswered, exit_code);
  spdlog::default_logger()->flush();
  return exit_code;
}

void Server::LimitStop(absl::Duration limit) {
  MutexLock lock(&mutex_);
  stop_limit_ = clock_->Now() + limit;
  changed_.NotifyAll();
}

int Server::KeepSequences(int exit_code) {
  LimitStop(kKeepLimit);
  keeping_ = true;
  const absl::Status status = keeper_->Keep(*engine_);
  keeping_ = false;
  LimitStop(kStopLimit);
  return status.ok() || exit_code != kExitDrained ? exit_code : kExitStateLost;
}

}  // namespace pleiad
