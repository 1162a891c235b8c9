#include "server/grpc_listeners.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
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

// Sockets that are bound meanwhile are their owner's alone.
class ScopedUmask {
 public:
  ScopedUmask() : before_(::umask(0177)) {}
  ~ScopedUmask() { ::umask(before_); }

 private:
  const mode_t before_;
};

// Of one connection at a time.
constexpr int kMaxCalls = 4096, kMaxHealthCalls = 64;

void SetCommon(const AccessFlags& access, grpc::ServerBuilder& builder) {
  builder.SetMaxSendMessageSize(-1);
  // Two servers must not share a port by accident.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(access.handshake_timeout)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kKeepaliveTime.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kKeepaliveTimeout.count()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(kMinPingInterval.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

struct GrpcListeners::Group {
  Group(ServiceState* state, Health* health) : ple(state), health_service(health) {}

  PleService ple;
  HealthService health_service;
  std::unique_ptr<grpc::CallbackGenericService> generic;
  const char* flag = "";
  std::shared_ptr<ListenerCredentials> credentials;  // of all its ports; null: those of the listeners
  std::unique_ptr<grpc::Server> server;
};

GrpcListeners::GrpcListeners(const ServiceLimits& limits) : quota_("pleiad-server") {
  quota_.Resize(limits.quota_bytes);
}

absl::StatusOr<std::unique_ptr<GrpcListeners>> GrpcListeners::Open(const std::vector<ListenAddress>& addresses,
                                                                   const AccessFlags& access,
                                                                   ReflectionScope reflection, ServiceState* state,
                                                                   Health* health,
                                                                   const GenericServiceFactory& make_generic) {
  // The library is never shut down: that waits up to 10 s for a poller that a stalled write has left behind.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  std::unique_ptr<GrpcListeners> listeners(new GrpcListeners(state->limits()));
  PLEIAD_RETURN_IF_ERROR(listeners->ReadAccess(access, state));
  listeners->addresses_ = addresses;
  std::vector<ListenAddress*> with_reflection, without;
  for (ListenAddress& address : listeners->addresses_) {
    if (address.is_unix()) PLEIAD_RETURN_IF_ERROR(RemoveStaleSocket(address.unix_path));
    const bool reflects = reflection == ReflectionScope::kAllListeners || address.is_local();
    (reflects ? with_reflection : without).push_back(&address);
  }
  PLEIAD_RETURN_IF_ERROR(listeners->OpenGroup(with_reflection, access, Reflection::kOn, state, health, make_generic));
  PLEIAD_RETURN_IF_ERROR(listeners->OpenGroup(without, access, Reflection::kOff, state, health, make_generic));
  PLEIAD_RETURN_IF_ERROR(listeners->OpenHealth(access, state, health));
  return listeners;
}

absl::Status GrpcListeners::ReadAccess(const AccessFlags& access, ServiceState* state) {
  socket_mode_ = access.socket_mode;
  std::shared_ptr<CertificateFiles> certificates;
  if (!access.tls_cert.empty()) {
    PLEIAD_ASSIGN_OR_RETURN(certificates, CertificateFiles::Open(access));
    state->UseCertificates(certificates);
  }
  if (!access.auth_tokens.empty()) {
    PLEIAD_ASSIGN_OR_RETURN(tokens_, TokenFile::Open(access.auth_tokens));
    state->clients.UseTokens(tokens_.get());
  }
  of_sockets_ = std::make_shared<ListenerCredentials>(nullptr, tokens_.get(), &state->counters);
  of_ports_ = std::make_shared<ListenerCredentials>(std::move(certificates), tokens_.get(), &state->counters);
  return absl::OkStatus();
}

absl::Status GrpcListeners::OpenGroup(const std::vector<ListenAddress*>& addresses, const AccessFlags& access,
                                      Reflection reflection, ServiceState* state, Health* health,
                                      const GenericServiceFactory& make_generic) {
  if (addresses.empty()) return absl::OkStatus();
  auto group = std::make_unique<Group>(state, health);
  grpc::ServerBuilder builder;
  SetCommon(access, builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCalls);
  builder.SetMaxReceiveMessageSize(state->limits().receive_bytes);
  builder.SetResourceQuota(quota_);
  builder.RegisterService(&group->ple);
  builder.RegisterService(&group->health_service);
  if (make_generic) {
    group->generic = make_generic();
    builder.RegisterCallbackGenericService(group->generic.get());
  }
  builder.SetOption(std::make_unique<ReflectionOption>(reflection));
  group->flag = "--listen";
  return Start(&builder, addresses, std::move(group));
}

absl::Status GrpcListeners::OpenHealth(const AccessFlags& access, ServiceState* state, Health* health) {
  if (access.health_listen.empty()) return absl::OkStatus();
  PLEIAD_ASSIGN_OR_RETURN(health_address_, ParseListenAddress(access.health_listen));
  auto group = std::make_unique<Group>(state, health);
  group->credentials = std::make_shared<ListenerCredentials>(nullptr, nullptr, &state->counters);
  group->flag = "--health-listen";
  grpc::ServerBuilder builder;
  SetCommon(access, builder);
  // Anybody may call: what they send takes little from those who may do more.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxHealthCalls);
  builder.SetMaxReceiveMessageSize(4 << 10);
  builder.SetResourceQuota(grpc::ResourceQuota("pleiad-health").Resize(16 << 20));
  builder.RegisterService(&group->health_service);
  builder.SetOption(std::make_unique<ReflectionOption>(Reflection::kOff));
  return Start(&builder, {&*health_address_}, std::move(group));
}

absl::Status GrpcListeners::Start(grpc::ServerBuilder* builder, const std::vector<ListenAddress*>& addresses,
                                  std::unique_ptr<Group> group) {
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto& credentials = group->credentials != nullptr ? group->credentials
                              : addresses[i]->is_unix()     ? of_sockets_
                                                            : of_ports_;
    builder->AddListeningPort(addresses[i]->ToString(), credentials, &ports[i]);
  }
  {
    const ScopedUmask scope;
    group->server = builder->BuildAndStart();
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    ListenAddress& address = *addresses[i];
    const auto fail = [&](absl::string_view what) {
      return absl::UnavailableError(absl::StrCat(group->flag, " ", address.ToString(), ": ", what));
    };
    if (ports[i] == 0) return fail(absl::StrCat("cannot listen: ", WhyNotListen(address)));
    if (!address.is_unix()) {
      address.port = static_cast<uint16_t>(ports[i]);
    } else if (::chmod(address.unix_path.c_str(), socket_mode_) != 0) {
      return fail(absl::StrCat("cannot set its mode (--socket-mode): ", std::strerror(errno)));
    }
  }
  if (group->server == nullptr) {
    return absl::UnavailableError(absl::StrCat(group->flag, ": the gRPC server does not start"));
  }
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
    // On the monotonic clock: a clock that is set does not end the check.
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_millis(absl::ToInt64Milliseconds(timeout), GPR_TIMESPAN)));
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
