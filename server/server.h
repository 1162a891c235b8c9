// The service in one object: listeners first, then the model, then serving, draining, stopping.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "server/flags.h"
#include "server/grpc_listeners.h"
#include "server/health.h"
#include "server/metrics.h"
#include "server/model_loader.h"
#include "server/sequence_keeper.h"
#include "server/service_state.h"
#include "server/warm_start.h"

namespace pleiad {

// Exit codes of the process.
enum ExitCode : int {
  kExitDrained = 0,
  kExitRefused = 1,
  kExitBadFlags = 2,
  kExitDeviceLost = 3,
  kExitUnanswered = 4,
  kExitStateLost = 5
};

struct ReadyInfo {
  std::vector<ListenAddress> addresses;
  std::optional<ListenAddress> health;  // of --health-listen
  ListenAddress metrics;
};

struct ServerDeps {
  Clock* clock = nullptr;  // null: the system's
  std::unique_ptr<ModelLoader> loader;
  // Called once when the server serves, on a thread of the server. May be empty.
  std::function<void(const ReadyInfo&)> on_ready;
  // Ends the process when stopping takes longer than kStopLimit. Empty: _Exit(kExitUnanswered), or of kExitStateLost.
  std::function<void()> hard_exit;
  GenericServiceFactory make_generic = {};
};

// Thread-safe; Wait is called once.
class Server {
 public:
  // Stopping takes no longer than that without --state-dir.
  static constexpr absl::Duration kStopLimit = absl::Seconds(2);
  // With it, giving up loses every open sequence. So steps that were admitted have that long to be answered,
  static constexpr absl::Duration kSettleLimit = absl::Seconds(5);
  // what the device has begun then has that long to end,
  static constexpr absl::Duration kBegunLimit = absl::Seconds(30);
  // and writing the open sequences may take that long.
  static constexpr absl::Duration kKeepLimit = absl::Seconds(60);

  // Opens the checkpoint and the listeners and starts loading. Any error: the start is refused (exit code 1).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerFlags& flags, ServerDeps deps);
  // Only after Wait has returned.
  ~Server();

  // With the ports that were chosen.
  ReadyInfo addresses() const;

  // Blocks until the model is loaded or the load has failed.
  absl::Status WaitUntilLoaded();

  // OK when the gRPC servers answer within `timeout` and the engine can be asked. Blocks that long, and for ever where
  // a lock is never given back. Not OK once stopped.
  absl::Status CheckLive(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_, stats_mutex_);

  // As SIGTERM: the first call drains, the second stops at once. While loading, the load ends.
  void Terminate();

  // Blocks until the server has drained, was stopped, or cannot go on; then stops it in order. Returns the exit code.
  int Wait();

 private:
  class Collector;

  Server(const ServerFlags& flags, ServerDeps deps, ModelSummary summary, const ServiceLimits& limits,
         std::unique_ptr<RegionTable> regions);

  void Load();
  absl::StatusOr<LoadedModel> RunLoader();
  // Health and engine follow what was asked for while loading.
  void Publish(LoadedModel loaded) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartEngineDraining();
  v1::GetModelResponse DescribeModel(const Engine& engine) const;
  MetricsSnapshot Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_, stats_mutex_);
  int Stop(int exit_code);
  // Writes open sequences to --state-dir, once nothing moves them any more; the exit code.
  int KeepSequences(int exit_code) ABSL_LOCKS_EXCLUDED(mutex_);
  // The watchdog waits that much longer from now on.
  void LimitStop(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_);

  const ServerFlags flags_;
  Clock* const clock_;
  const std::unique_ptr<ModelLoader> loader_;
  const std::function<void(const ReadyInfo&)> on_ready_;
  std::atomic<bool> keeping_{false};  // sequences are being written
  const std::function<void()> hard_exit_;
  const ModelSummary summary_;
  std::unique_ptr<SequenceKeeper> keeper_;  // null without --state-dir; used by the loading thread, then by Stop

  Health health_;                    // the row store tells it about the table until the engine is destroyed
  std::unique_ptr<Engine> engine_;   // written by the loading thread before loaded_ is set; then constant until Stop
  std::unique_ptr<WarmStart> warm_;  // as engine_; null without --state-dir or a cache
  ServiceState state_;
  std::unique_ptr<GrpcListeners> listeners_;
  std::unique_ptr<MetricsListener> metrics_;
  std::thread loading_;
  std::atomic<double> load_ratio_{0};
  std::atomic<bool> cancel_load_{false};

  mutable Mutex stats_mutex_;  // held while somebody asks the engine for its statistics
  bool engine_gone_ ABSL_GUARDED_BY(stats_mutex_) = false;

  mutable Mutex mutex_;
  CondVar changed_;
  MetricsInfo metrics_info_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> loaded_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> draining_since_ ABSL_GUARDED_BY(mutex_);
  bool stop_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool drain_begins_ ABSL_GUARDED_BY(mutex_) = false;  // Terminate tells the engine
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool device_lost_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time stop_limit_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pleiad
