// A whole server over a checkpoint in the test's process, on a unix socket of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/client.h"
#include "core/base/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "server/checkpoint_loader.h"
#include "server/run_server.h"
#include "server/server.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

// Loaded when constructed, stopped when destroyed. Aborts where it cannot start.
class InProcessServer {
 public:
  // `change` edits the flags. `clock` null: the system's. `cache`: of --table cached.
  explicit InProcessServer(const std::string& model, const std::function<void(ServerFlags&)>& change = nullptr,
                           Clock* clock = nullptr, CacheParts cache = {}, ServerParts parts = {});
  ~InProcessServer();

  Server& server() { return *server_; }
  std::string address() const { return "unix:" + (dir_ / "pleiad"); }
  std::string socket_path() const { return dir_ / "pleiad"; }
  uint16_t metrics_port() const { return server_->addresses().metrics.port; }
  // The generated stub, for what the client library would not send.
  v1::Ple::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  client::Client Connect() const { return ConnectTo(address()); }
  static client::Client ConnectTo(const std::string& address);
  // A channel of its own for messages of any size.
  static std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);
  // A grpc.health.v1 status.
  int HealthOf(const std::string& service);
  // The exit code; once.
  int Wait();

 private:
  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ple::Stub> stub_;
  bool waited_ = false;
};

}  // namespace pleiad::testing
