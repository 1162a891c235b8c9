#include "server/grpc_listeners.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "server/ple_service.h"

namespace pleiad {
namespace {

// Reflection for one server: the linked library switches it on for every server of the process.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(Reflection reflection) : reflection_(reflection) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto own = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins, [&own](const auto& plugin) { return plugin->name() == own->name(); });
    if (reflection_ == Reflection::kOn) plugins->push_back(std::move(own));
  }

 private:
  const Reflection reflection_;
};

}  // namespace

struct GrpcListeners::Group {
  Group(ServiceState* state, Health* health) : ple(state), health_service(health) {}

  PleService ple;
  HealthService health_service;
  std::unique_ptr<grpc::CallbackGenericService> generic;
  std::unique_ptr<grpc::Server> server;
};

GrpcListeners::GrpcListeners(const ServiceLimits& limits) : quota_("pleiad-server") {
  quota_.Resize(limits.quota_bytes);
}

absl::StatusOr<std::unique_ptr<GrpcListeners>> GrpcListeners::Open(const std::vector<ListenAddress>& addresses,
                                                                   ReflectionScope reflection, ServiceState* state,
                                                                   Health* health,
                                                                   const GenericServiceFactory& make_generic) {
  // The library is never shut down: that waits up to 10 s for a poller that a stalled write has left behind.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  std::unique_ptr<GrpcListeners> listeners(new GrpcListeners(state->limits()));
  std::vector<size_t> with_reflection, without;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].is_unix()) PLEIAD_RETURN_IF_ERROR(RemoveStaleSocket(addresses[i].unix_path));
    const bool reflects = reflection == ReflectionScope::kAllListeners || addresses[i].is_local();
    (reflects ? with_reflection : without).push_back(i);
  }
  listeners->addresses_ = addresses;
  PLEIAD_RETURN_IF_ERROR(listeners->OpenGroup(with_reflection, Reflection::kOn, state, health, make_generic));
  PLEIAD_RETURN_IF_ERROR(listeners->OpenGroup(without, Reflection::kOff, state, health, make_generic));
  return listeners;
}

absl::Status GrpcListeners::OpenGroup(const std::vector<size_t>& indices, Reflection reflection, ServiceState* state,
                                      Health* health, const GenericServiceFactory& make_generic) {
  if (indices.empty()) return absl::OkStatus();
  auto group = std::make_unique<Group>(state, health);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(state->limits().receive_bytes);
  builder.SetMaxSendMessageSize(-1);
  // Two servers must not share a port by accident.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetResourceQuota(quota_);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kKeepaliveTime.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kKeepaliveTimeout.count()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(kMinPingInterval.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.RegisterService(&group->ple);
  builder.RegisterService(&group->health_service);
  if (make_generic) {
    group->generic = make_generic();
    builder.RegisterCallbackGenericService(group->generic.get());
  }
  builder.SetOption(std::make_unique<ReflectionOption>(reflection));
  std::vector<int> ports(indices.size(), 0);
  for (size_t i = 0; i < indices.size(); ++i) {
    builder.AddListeningPort(addresses_[indices[i]].ToString(), grpc::InsecureServerCredentials(), &ports[i]);
  }
  group->server = builder.BuildAndStart();
  for (size_t i = 0; i < indices.size(); ++i) {
    ListenAddress& address = addresses_[indices[i]];
    if (ports[i] == 0) return absl::UnavailableError(absl::StrCat("--listen ", address.ToString(), ": cannot listen"));
    if (!address.is_unix()) address.port = static_cast<uint16_t>(ports[i]);
  }
  if (group->server == nullptr) return absl::UnavailableError("--listen: the gRPC server does not start");
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status GrpcListeners::CheckLive(absl::Duration timeout) const {
  MutexLock alone(&check_mutex_);
  for (const auto& group : groups_) {
    grpc::ClientContext context;
    {
      MutexLock lock(&mutex_);
      if (shut_down_) return absl::UnavailableError("the gRPC server has been shut down");
      check_ = &context;
    }
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("pleiad.live");
    grpc::health::v1::HealthCheckResponse response;
    const auto stub = grpc::health::v1::Health::NewStub(group->server->InProcessChannel(grpc::ChannelArguments()));
    const grpc::StatusCode code = stub->Check(&context, request, &response).error_code();
    {
      MutexLock lock(&mutex_);
      check_ = nullptr;
    }
    if (code == grpc::StatusCode::DEADLINE_EXCEEDED || code == grpc::StatusCode::CANCELLED) {
      return absl::UnavailableError(absl::StrCat("the gRPC server gave no answer in ", absl::FormatDuration(timeout)));
    }
  }
  return absl::OkStatus();
}

void GrpcListeners::Shutdown(std::chrono::system_clock::time_point deadline) {
  {
    MutexLock lock(&mutex_);
    shut_down_ = true;
    if (check_ != nullptr) check_->TryCancel();
  }
  MutexLock alone(&check_mutex_);
  for (const auto& group : groups_) group->server->Shutdown(deadline);
}

GrpcListeners::~GrpcListeners() { Shutdown(std::chrono::system_clock::now()); }

}  // namespace pleiad
