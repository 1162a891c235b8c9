// The gRPC servers of the process: one for the listeners with reflection, one for those without.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/health.h"
#include "server/listener.h"
#include "server/service_state.h"

namespace pleiad {

enum class Reflection : uint8_t { kOff, kOn };
enum class ReflectionScope : uint8_t { kLocalListeners, kAllListeners };

// Makes the service that answers the methods of no other one, one for each gRPC server. Empty: they are unimplemented.
using GenericServiceFactory = std::function<std::unique_ptr<grpc::CallbackGenericService>()>;

class GrpcListeners {
 public:
  // Opens all listeners, or none. `state` and `health` outlive the result. FailedPrecondition or Unavailable naming the
  // address that cannot be had.
  static absl::StatusOr<std::unique_ptr<GrpcListeners>> Open(const std::vector<ListenAddress>& addresses,
                                                             ReflectionScope reflection, ServiceState* state,
                                                             Health* health,
                                                             const GenericServiceFactory& make_generic = {});
  // Shuts down at once if Shutdown was not called. gRPC removes unix sockets.
  ~GrpcListeners();

  // In the order given, with the ports that were chosen.
  const std::vector<ListenAddress>& addresses() const { return addresses_; }

  // No new calls; waits for those there are and cancels them at `deadline`. Blocks until the last is gone.
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  struct Group;

  GrpcListeners() = default;
  absl::Status OpenGroup(const std::vector<size_t>& indices, Reflection reflection, ServiceState* state, Health* health,
                         const GenericServiceFactory& make_generic);

  std::vector<ListenAddress> addresses_;
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace pleiad
