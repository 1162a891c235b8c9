#include "tests/e2e/in_process_server.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "spdlog/spdlog.h"
#include "tests/support/test_device_flag.h"
#include "tests/support/test_spin.h"

namespace pleiad::testing {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

InProcessServer::InProcessServer(const std::string& model, const std::function<void(ServerFlags&)>& change,
                                 Clock* clock, CacheParts cache, ServerParts parts) {
  spdlog::set_level(spdlog::level::warn);
  ServerFlags flags;
  flags.model = model;
  flags.listen = {address()};
  flags.metrics_listen = "127.0.0.1:0";
  flags.table = TableFlag::kResident;
  flags.device = TestDeviceFlag();
  flags.max_tokens = 256;
  flags.max_sequences = 128;
  flags.spin = TestSpin();
  if (change) change(flags);
  server_ = OrDie(Server::Start(flags, {.clock = clock,
                                        .loader = std::make_unique<CheckpointLoader>(flags, clock, std::move(cache),
                                                                                     std::move(parts.wrap_device)),
                                        .on_ready = nullptr,
                                        .hard_exit = [] { ADD_FAILURE() << "the stop limit has passed"; },
                                        .make_generic = std::move(parts.make_generic)}));
  if (const absl::Status loaded = server_->WaitUntilLoaded(); !loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.ToString().c_str());
    std::abort();
  }
  channel_ = ChannelTo(address());
  stub_ = v1::Ple::NewStub(channel_);
}

InProcessServer::~InProcessServer() {
  if (waited_) return;
  server_->Terminate();
  server_->Terminate();
  Wait();
}

std::shared_ptr<grpc::Channel> InProcessServer::ChannelTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(INT_MAX);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

client::Client InProcessServer::ConnectTo(const std::string& address) {
  client::ClientOptions options;
  options.address = address;
  options.rpc_timeout = absl::Minutes(2);
  options.connect_timeout = absl::Minutes(1);
  return OrDie(client::Client::Connect(options));
}

int InProcessServer::HealthOf(const std::string& service) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = grpc::health::v1::Health::NewStub(channel_)->Check(&context, request, &response);
  return status.ok() ? response.status() : -1;
}

int InProcessServer::Wait() {
  waited_ = true;
  return server_->Wait();
}

}  // namespace pleiad::testing
