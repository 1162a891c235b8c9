// The gRPC servers of the process: one for the listeners with reflection, one for those without, one for health alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/access_flags.h"
#include "server/health.h"
#include "server/listener.h"
#include "server/listener_credentials.h"
#include "server/service_state.h"

namespace pleiad {

enum class Reflection : uint8_t { kOff, kOn };
enum class ReflectionScope : uint8_t { kLocalListeners, kAllListeners };

// Of every connection. A client may ask for a sign of life every 10 s, the least that gRPC clients are let to, with
// calls or without; one that asks more often than kMinPingInterval is sent away, ENHANCE_YOUR_CALM. A client that has
// been silent for kKeepaliveTime is asked itself, and its calls end kKeepaliveTimeout later if it does not answer.
inline constexpr std::chrono::milliseconds kMinPingInterval = std::chrono::seconds(5);
inline constexpr std::chrono::milliseconds kKeepaliveTime = std::chrono::seconds(60);
inline constexpr std::chrono::milliseconds kKeepaliveTimeout = std::chrono::seconds(20);

// Makes the service that answers the methods of no other one, one for each gRPC server. Empty: they are unimplemented.
using GenericServiceFactory = std::function<std::unique_ptr<grpc::CallbackGenericService>()>;

class GrpcListeners {
 public:
  // Opens all listeners, or none. `state` and `health` outlive the result. InvalidArgument naming the file of `access`
  // that is no good; FailedPrecondition or Unavailable naming the address that cannot be had.
  static absl::StatusOr<std::unique_ptr<GrpcListeners>> Open(const std::vector<ListenAddress>& addresses,
                                                             const AccessFlags& access, ReflectionScope reflection,
                                                             ServiceState* state, Health* health,
                                                             const GenericServiceFactory& make_generic = {});
  // Shuts down at once if Shutdown was not called. gRPC removes unix sockets.
  ~GrpcListeners();

  // In the order given, with the ports that were chosen.
  const std::vector<ListenAddress>& addresses() const { return addresses_; }
  // Of health alone; nothing where there is none.
  const std::optional<ListenAddress>& health_address() const { return health_address_; }

  // Asks every server for the health of "pleiad.live", within the process. Unavailable where one does not answer within
  // `timeout`, or has been shut down; a refusal is an answer. Blocks that long. Thread-safe, beside Shutdown too.
  absl::Status CheckLive(absl::Duration timeout) const;

  // No new calls; waits for those there are and cancels them at `deadline`. Blocks until the last is gone.
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  struct Group;

  explicit GrpcListeners(const ServiceLimits& limits);
  absl::Status ReadAccess(const AccessFlags& access, ServiceState* state);
  // Sets the ports that were chosen.
  absl::Status OpenGroup(const std::vector<ListenAddress*>& addresses, const AccessFlags& access, Reflection reflection,
                         ServiceState* state, Health* health, const GenericServiceFactory& make_generic);
  absl::Status OpenHealth(const AccessFlags& access, ServiceState* state, Health* health);
  absl::Status Start(grpc::ServerBuilder* builder, const std::vector<ListenAddress*>& addresses,
                     std::unique_ptr<Group> group);

  // One for all servers but that of health alone. Admission counts a message once it is whole, this from its first
  // byte: past it gRPC gives buffers back, then ends streams (RESOURCE_EXHAUSTED) and idle connections (UNAVAILABLE)
  // until it is kept, whoever's they are.
  grpc::ResourceQuota quota_;
  // A call within the process beside its server's end crashes (gRPC 1.51): the check is cancelled and waited for.
  mutable Mutex check_mutex_;  // held during CheckLive
  mutable Mutex mutex_;
  mutable grpc::ClientContext* check_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t socket_mode_ = 0;
  std::unique_ptr<TokenFile> tokens_;
  std::shared_ptr<ListenerCredentials> of_sockets_, of_ports_;
  std::vector<ListenAddress> addresses_;
  std::optional<ListenAddress> health_address_;
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace pleiad
