// A whole server over a FakeEngine in the test's process, and stubs to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "server/server.h"
#include "tests/server/fake_engine.h"

namespace pleiad {

enum class StartAs { kLoaded, kLoading };

// On a free port of the loopback interface; metrics too.
ServerFlags TestFlags();

// Stops the server when destroyed.
class TestServer {
 public:
  explicit TestServer(FakeEngine::Mode mode = FakeEngine::Mode::kAnswerAtOnce, StartAs start = StartAs::kLoaded,
                      const ServerFlags& flags = TestFlags(), Clock* clock = nullptr,
                      std::function<void()> hard_exit = nullptr);
  ~TestServer();

  Server& server() { return *server_; }
  FakeEngine& engine();
  FakeLoader::Control& loader() { return *loader_; }
  v1::Ple::Stub& stub() { return *stub_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  // Waits for the exit code; once.
  int Wait();

  // What Check says of `name`; -1 for NOT_FOUND.
  int HealthOf(const std::string& name);
  // The metrics page.
  std::string Scrape();

 private:
  std::shared_ptr<FakeLoader::Control> loader_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ple::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  bool waited_ = false;
};

// The Status in the trailing metadata of a finished call; empty when there is none.
v1::Status TrailingStatus(const grpc::ClientContext& context);

// One token of `sequence` with a tensor of F32 `value`s.
v1::ForwardRequest Step(uint64_t request_id, uint64_t sequence, float value = 0);

}  // namespace pleiad
