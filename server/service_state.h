// What all RPCs of one process share: the engine once it is loaded, the phase, admission, counters, open streams.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/engine.h"
#include "pleiad/v1/ple.pb.h"
#include "server/admission.h"
#include "server/certificate_files.h"
#include "server/clients.h"
#include "server/failure_log.h"
#include "server/limits.h"
#include "server/output_pool.h"
#include "server/regions.h"
#include "server/rpc_counters.h"
#include "server/spinning_thread.h"
#include "server/stall_watch.h"
#include "server/step_regions.h"

namespace pleiad {

// A stream that the stopping server ends once its admitted steps are answered.
class EndableStream {
 public:
  virtual ~EndableStream() = default;
  virtual void End() = 0;
};

// Thread-safe. Outlives every RPC.
class ServiceState {
 public:
  // Without `regions` none are allowed.
  ServiceState(const ServiceLimits& limits, Clock* clock, std::unique_ptr<RegionTable> regions = nullptr,
               const AccessFlags& access = {})
      : clients(access),
        admission({.requests = limits.inflight_requests, .bytes = limits.inflight_bytes}),
        stalls(&admission, clock),
        failures(2 * size_t{limits.max_sequences}, clock),
        limits_(limits),
        clock_(clock),
        regions_(std::move(regions)),
        spinner_(clock) {}

  // Loading -> serving, once. `engine` outlives every RPC.
  void SetServing(Engine* engine, v1::GetModelResponse model, const ServerFlags& flags);
  // Every response says so from now on.
  void SetDraining() { draining_.store(true); }
  // New RPCs are refused from now on.
  void SetStopping() { stopping_.store(true); }
  // Ends the streams there are, and at once those that come later.
  void EndStreams();

  // Why a new RPC cannot be served: loading or stopping.
  std::optional<Outcome> Refusal() const;
  // Null while loading.
  Engine* engine() const { return engine_.load(); }
  // Only with an engine.
  const v1::GetModelResponse& model() const { return model_; }
  bool draining() const { return draining_.load(); }
  // Takes requests of streams from gRPC's threads; started by SetServing where SpinFor says so.
  SpinningThread& spinner() { return spinner_; }
  const ServiceLimits& limits() const { return limits_; }
  Clock* clock() const { return clock_; }
  // Null where regions are not allowed.
  RegionTable* regions() const { return regions_.get(); }
  // Of a client at `peer`, as gRPC names it: regions are for those of a Unix socket.
  RegionAccess RegionsFor(const std::string& peer) const;

  // Those of the listeners, as they are now; null without TLS. Blocks as CertificateFiles::Current.
  void UseCertificates(std::shared_ptr<CertificateFiles> certificates);
  std::shared_ptr<const Certificate> certificate() const;

  // Every RPC, from its start until gRPC is done with it.
  void BeginCall();
  void EndCall();
  // Waits until no RPC is left, at most until `deadline` of the system's monotonic clock.
  void WaitForCalls(std::chrono::steady_clock::time_point deadline);

  void AddStream(const std::shared_ptr<EndableStream>& stream);
  void RemoveStream(const EndableStream* stream);

  ClientTable clients;
  Admission admission;
  OutputPool outputs;
  RpcCounters counters;
  StallWatch stalls;
  FailureLog failures;

 private:
  const ServiceLimits limits_;
  Clock* const clock_;
  const std::unique_ptr<RegionTable> regions_;
  v1::GetModelResponse model_;  // written before engine_ is
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};

  mutable Mutex mutex_;
  std::shared_ptr<CertificateFiles> certificates_ ABSL_GUARDED_BY(mutex_);
  CondVar calls_changed_;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool streams_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const EndableStream*, std::weak_ptr<EndableStream>> streams_ ABSL_GUARDED_BY(mutex_);

  SpinningThread spinner_;  // last, so that it ends before what it works on
};

}  // namespace pleiad
