#include "tests/server/test_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/test_spin.h"

namespace pleiad {

ServerFlags TestFlags() {
  ServerFlags flags;
  flags.model = "fake";
  flags.listen = {"127.0.0.1:0"};
  flags.metrics_listen = "127.0.0.1:0";
  flags.max_tokens = 16;
  flags.spin = testing::TestSpin();
  return flags;
}

TestServer::TestServer(FakeEngine::Mode mode, StartAs start, const ServerFlags& flags, Clock* clock,
                       std::function<void()> hard_exit)
    : loader_(std::make_shared<FakeLoader::Control>()) {
  if (!hard_exit) hard_exit = [] { ADD_FAILURE() << "the stop limit has passed"; };
  auto server = Server::Start(flags, {.clock = clock,
                                      .loader = std::make_unique<FakeLoader>(loader_, mode),
                                      .on_ready = nullptr,
                                      .hard_exit = std::move(hard_exit)});
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  channel_ = grpc::CreateChannel(server_->addresses().addresses.front().ToString(), grpc::InsecureChannelCredentials());
  stub_ = v1::Ple::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
  if (start == StartAs::kLoaded) {
    loader_->Finish();
    EXPECT_TRUE(server_->WaitUntilLoaded().ok());
  }
}

TestServer::~TestServer() {
  if (waited_) return;
  server_->Terminate();
  server_->Terminate();
  Wait();
}

FakeEngine& TestServer::engine() {
  MutexLock lock(&loader_->mutex);
  return *loader_->engine;
}

int TestServer::Wait() {
  waited_ = true;
  return server_->Wait();
}

int TestServer::HealthOf(const std::string& name) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(name);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = health_->Check(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return -1;
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.status();
}

std::string TestServer::Scrape() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->addresses().metrics.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string page;
  std::vector<char> buffer(1 << 16);
  for (ssize_t n; (n = ::read(fd.get(), buffer.data(), buffer.size())) > 0;)
    page.append(buffer.data(), static_cast<size_t>(n));
  return page;
}

v1::Status TrailingStatus(const grpc::ClientContext& context) {
  v1::Status status;
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("pleiad-status-bin");
  if (found != metadata.end()) {
    EXPECT_TRUE(status.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())));
  }
  return status;
}

v1::ForwardRequest Step(uint64_t request_id, uint64_t sequence, float value) {
  v1::ForwardRequest request;
  request.set_request_id(request_id);
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(sequence);
  segment->set_num_tokens(1);
  request.add_token_ids(11);
  const std::vector<float> values(FakeConfig().geometry.channels(), value);
  request.mutable_highway()->set_dtype(v1::DTYPE_F32);
  request.mutable_highway()->set_data(values.data(), values.size() * sizeof(float));
  return request;
}

}  // namespace pleiad
