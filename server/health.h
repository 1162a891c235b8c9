// grpc.health.v1.Health: names "" and "pleiad.v1.Ple" are ready to serve, "pleiad.live" the process works.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace pleiad {

enum class Readiness : uint8_t { kNotServing, kServing };
enum class TableHealth : uint8_t { kReadable, kUnreadable };

// Called with each new state, with no lock held.
class HealthWatcher {
 public:
  virtual ~HealthWatcher() = default;
  virtual void Update() = 0;
  virtual void End() = 0;
};

// Thread-safe. Serving while it is ready and its table is readable; not ready at first.
class Health {
 public:
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

  void Set(Readiness readiness);
  void SetTable(TableHealth table);
  bool serving() const;
  // SERVICE_UNKNOWN for other names.
  ServingStatus Get(const std::string& name) const;

  // Anybody may watch, without a token too; each takes some 17 KiB.
  static constexpr size_t kMaxWatchers = 1024;

  // UNAVAILABLE after EndWatches, RESOURCE_EXHAUSTED beyond kMaxWatchers: it is not watched.
  grpc::Status Add(const std::shared_ptr<HealthWatcher>& watcher);
  void Remove(const HealthWatcher* watcher);
  // Ends all Watch calls, those that come later too.
  void EndWatches();

 private:
  // Asks every watcher to look again.
  void UpdateWatchers();

  mutable Mutex mutex_;
  Readiness readiness_ ABSL_GUARDED_BY(mutex_) = Readiness::kNotServing;
  TableHealth table_ ABSL_GUARDED_BY(mutex_) = TableHealth::kReadable;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const HealthWatcher*, std::weak_ptr<HealthWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

// One instance per grpc::Server; `health` outlives it.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(Health* health) : health_(health) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  Health* const health_;
};

}  // namespace pleiad
