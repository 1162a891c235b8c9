// Loading, serving, draining, stopping.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_clock.h"

namespace pleiad {
namespace {

using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

TEST(Lifecycle, ListensBeforeTheModelIsLoaded) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server.HealthOf("pleiad.v1.Ple"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server.HealthOf("pleiad.live"), HealthCheckResponse::SERVING);
  EXPECT_EQ(server.HealthOf("other"), -1);
  EXPECT_THAT(server.Scrape(), HasSubstr("pleiad_ready 0\n"));
  {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    EXPECT_EQ(server.stub().GetModel(&context, {}, &model).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(TrailingStatus(context).details(0).reason(), v1::REASON_LOADING);
  }
  {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    EXPECT_EQ(server.stub().Forward(&context, Step(1, 1), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(TrailingStatus(context).details(0).reason(), v1::REASON_LOADING);
  }
  server.loader().Finish();
  ASSERT_TRUE(server.server().WaitUntilLoaded().ok());
  EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(server.HealthOf("pleiad.v1.Ple"), HealthCheckResponse::SERVING);
  EXPECT_THAT(server.Scrape(), HasSubstr("pleiad_ready 1\n"));
  EXPECT_THAT(server.Scrape(), HasSubstr("pleiad_load_ratio 1\n"));
  grpc::ClientContext context;
  v1::ForwardResponse response;
  EXPECT_TRUE(server.stub().Forward(&context, Step(1, 1), &response).ok());
}

TEST(Lifecycle, AFailedLoadEndsTheServerWith1) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  server.loader().Finish(absl::DataLossError("short file"));
  EXPECT_EQ(server.Wait(), kExitRefused);
}

TEST(Lifecycle, TerminatingWhileLoadingEndsTheLoad) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  server.server().Terminate();
  EXPECT_EQ(server.Wait(), kExitDrained);
}

TEST(Lifecycle, DrainsUntilTheEngineIsIdle) {
  TestServer server;
  server.server().Terminate();
  EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server.HealthOf("pleiad.live"), HealthCheckResponse::SERVING);
  EXPECT_TRUE(server.engine().draining());
  grpc::ClientContext context;
  v1::ForwardResponse response;
  EXPECT_TRUE(server.stub().Forward(&context, Step(1, 1), &response).ok()) << "steps stay accepted";
  EXPECT_TRUE(response.draining());
  server.engine().BecomeIdle();
  EXPECT_EQ(server.Wait(), kExitDrained);
}

TEST(Lifecycle, TheDrainTimeoutEndsTheDrainWith4WhereAStepIsUnanswered) {
  FakeClock clock;
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, TestFlags(), &clock);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  auto status = std::async(std::launch::async, [&] { return server.stub().Forward(&context, Step(1, 1), &response); });
  server.engine().WaitForHeld(1);
  server.server().Terminate();
  clock.Advance(TestFlags().drain_timeout);
  EXPECT_EQ(server.Wait(), kExitUnanswered);
  EXPECT_EQ(status.get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Lifecycle, ALostDeviceEndsTheServerWith3) {
  TestServer server;
  server.engine().LoseDevice();
  EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server.Wait(), kExitDeviceLost);
}

TEST(Lifecycle, AStopThatHangsIsCutOff) {
  FakeClock clock;
  std::promise<void> cut_off;
  TestServer server(FakeEngine::Mode::kHold, StartAs::kLoaded, TestFlags(), &clock, [&] { cut_off.set_value(); });
  server.engine().BlockStop();
  server.server().Terminate();
  server.server().Terminate();
  auto exit_code = std::async(std::launch::async, [&] { return server.Wait(); });
  server.engine().WaitForStop();
  clock.Advance(Server::kStopLimit);
  cut_off.get_future().wait();
  server.engine().UnblockStop();
  EXPECT_EQ(exit_code.get(), kExitDrained) << "had it not been cut off";
}

TEST(Lifecycle, WatchersOfHealthSeeEveryChange) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading);
  grpc::ClientContext context, unknown_context;
  grpc::health::v1::HealthCheckRequest request;
  auto watch = server.health().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  request.set_service("other");
  auto unknown = server.health().Watch(&unknown_context, request);
  ASSERT_TRUE(unknown->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  server.loader().Finish();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.server().Terminate();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server.engine().BecomeIdle();
  EXPECT_EQ(server.Wait(), kExitDrained);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

absl::Status StartError(const ServerFlags& flags) {
  auto control = std::make_shared<FakeLoader::Control>();
  auto server = Server::Start(flags, {.clock = nullptr,
                                      .loader = std::make_unique<FakeLoader>(control, FakeEngine::Mode::kHold),
                                      .on_ready = nullptr,
                                      .hard_exit = nullptr});
  if (!server.ok()) return server.status();
  (*server)->Terminate();
  (*server)->Wait();
  return absl::OkStatus();
}

TEST(Lifecycle, APortThatIsTakenRefusesTheStartAndIsFreeRightAfterTheStop) {
  ServerFlags flags = TestFlags();
  {
    TestServer server;
    flags.listen = {server.server().addresses().addresses.front().ToString()};
    EXPECT_THAT(StartError(flags).message(), HasSubstr(flags.listen.front()));
    ServerFlags metrics = TestFlags();
    metrics.metrics_listen = server.server().addresses().metrics.ToString();
    EXPECT_THAT(StartError(metrics).message(), HasSubstr(metrics.metrics_listen));
    EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::SERVING) << "the first server is not disturbed";
  }
  EXPECT_TRUE(StartError(flags).ok());
}

TEST(Lifecycle, TooManyTokensRefuseTheStart) {
  ServerFlags flags = TestFlags();
  flags.max_tokens = 1u << 26;
  EXPECT_THAT(StartError(flags).message(), HasSubstr("--max-tokens"));
}

TEST(Lifecycle, AUnixSocketIsServedAndRemoved) {
  const std::string path = "/tmp/pleiad-lifecycle-" + std::to_string(::getpid());
  ServerFlags flags = TestFlags();
  flags.listen = {"unix:" + path, "127.0.0.1:0"};
  {
    TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags);
    EXPECT_EQ(server.HealthOf(""), HealthCheckResponse::SERVING);
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_NE(server.server().addresses().addresses[1].port, 0);
    EXPECT_EQ(StartError(flags).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// The code a reflection stream ends with when it is closed at once.
grpc::StatusCode ReflectionCode(const std::string& address) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  };
  call->StartCall(nullptr);
  next();
  call->WritesDone(nullptr);
  next();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return status.error_code();
}

TEST(Lifecycle, ReflectionIsOnForLocalListenersAndByFlagElsewhere) {
  ServerFlags flags = TestFlags();
  flags.listen = {"127.0.0.1:0", "0.0.0.0:0"};
  const auto code = [&flags](size_t listener) {
    TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags);
    const uint16_t port = server.server().addresses().addresses[listener].port;
    return ReflectionCode("127.0.0.1:" + std::to_string(port));
  };
  EXPECT_EQ(code(0), grpc::StatusCode::OK);
  EXPECT_EQ(code(1), grpc::StatusCode::UNIMPLEMENTED);
  flags.reflection = true;
  EXPECT_EQ(code(1), grpc::StatusCode::OK);
}

TEST(MetricsListener, IdleConnectionsDoNotKeepAScraperWaiting) {
  TestServer server;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.server().addresses().metrics.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 6; ++i) {
    idle.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(idle.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_THAT(server.Scrape(), HasSubstr("pleiad_ready 1\n"));
  for (const UniqueFd& fd : idle) {
    char byte = 0;
    EXPECT_EQ(::recv(fd.get(), &byte, 1, MSG_DONTWAIT), -1) << "the scrape was answered after this one timed out";
  }
}

}  // namespace
}  // namespace pleiad
