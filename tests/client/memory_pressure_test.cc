// Unary calls to a server that ends calls to get its memory back.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace pleiad::client {
namespace {

using ::testing::HasSubstr;

// Ends the next calls as gRPC does, whatever they are.
class PressedServer final : public v1::Ple::Service {
 public:
  PressedServer() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ClientOptions options;
    options.address = "127.0.0.1:" + std::to_string(port);
    ModelInfo model;
    connection_ = ConnectGrpc(options, &model).value();
    options.rpc_timeout = absl::Seconds(2);
    hasty_ = ConnectGrpc(options, &model).value();
  }

  // How many calls it took of the same, where the next `ended` are ended.
  int Calls(int ended, const std::function<absl::Status(Connection&)>& call, absl::Status* result) {
    ended_ = ended;
    calls_ = 0;
    *result = call(*connection_);
    return calls_;
  }
  Connection& hasty() { return *hasty_; }
  void EndCalls(int ended) {
    ended_ = ended;
    calls_ = 0;
  }
  int calls() const { return calls_; }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*, v1::GetModelResponse* out) override {
    out->add_layers()->set_layer_index(1);
    return Next();
  }
  grpc::Status OpenSequence(grpc::ServerContext*, const v1::OpenSequenceRequest*, v1::OpenSequenceResponse*) override {
    return Next();
  }
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest*, v1::LookupResponse*) override { return Next(); }
  grpc::Status GetSequence(grpc::ServerContext*, const v1::GetSequenceRequest*, v1::GetSequenceResponse*) override {
    return Next();
  }
  grpc::Status Snapshot(grpc::ServerContext*, const v1::SnapshotRequest*, v1::SnapshotResponse*) override {
    return Next();
  }
  grpc::Status Restore(grpc::ServerContext*, const v1::RestoreRequest*, v1::RestoreResponse*) override {
    return Next();
  }
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override {
    return Next();
  }
  grpc::Status Forward(grpc::ServerContext*, const v1::ForwardRequest*, v1::ForwardResponse*) override {
    return Next();
  }

 private:
  grpc::Status Next() {
    ++calls_;
    if (ended_-- <= 0) return grpc::Status::OK;
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11"};
  }

  std::atomic<int> ended_{0}, calls_{0};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<Connection> connection_, hasty_;
};

using Call = std::function<absl::Status(Connection&)>;

TEST(MemoryPressure, CallsThatMayBeMadeTwiceAreMadeAgain) {
  PressedServer server;
  OpenOptions keyed;
  keyed.client_key = "key";
  const std::vector<std::pair<std::string, Call>> calls = {
      {"GetModel", [](Connection& c) { return c.GetModel().status(); }},
      {"Open with a key", [&](Connection& c) { return c.Open(keyed).status(); }},
      {"GetSequence", [](Connection& c) { return c.GetSequence(SequenceId{1}, 0).status(); }},
      {"Snapshot", [](Connection& c) { return c.Snapshot(SequenceId{1}, 0, std::nullopt).status(); }},
      {"Lookup", [](Connection& c) { return c.Lookup({}).status(); }},
  };
  for (const auto& [name, call] : calls) {
    absl::Status status;
    EXPECT_EQ(server.Calls(2, call, &status), 3) << name;
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
}

TEST(MemoryPressure, OthersAreMadeOnceAndAreNoReasonToLeaveTheServer) {
  PressedServer server;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"Open", [](Connection& c) { return c.Open({}).status(); }},
      {"Restore", [](Connection& c) { return c.Restore(SequenceId{1}, 0, {}); }},
      {"Release", [](Connection& c) { return c.Release(SequenceId{1}, 0).status(); }},
      {"Forward", [](Connection& c) { return c.Forward({}).status(); }},
  };
  for (const auto& [name, call] : calls) {
    absl::Status status;
    EXPECT_EQ(server.Calls(1, call, &status), 1) << name;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("short of memory")) << name;
  }
}

TEST(MemoryPressure, NoCallIsMadeAgainPastItsTimeout) {
  PressedServer server;
  server.EndCalls(1'000'000);
  const absl::Status status = server.hasty().GetSequence(SequenceId{1}, 0).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GT(server.calls(), 1);
  EXPECT_LT(server.calls(), 10);
}

}  // namespace
}  // namespace pleiad::client
