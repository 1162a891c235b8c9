// pleiad-server as a process: B28, B34.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/process/server_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::vector<uint64_t> kRowsOf11 = {6, 41, 72, 124};

// A server on a checkpoint of its own.
class OwnServer {
 public:
  explicit OwnServer(const std::vector<std::string>& more = {}, const std::string& listen = "127.0.0.1:0") {
    WriteCheckpoint({}, dir_.path());
    std::vector<std::string> flags = {"--threads", "2", "--max-tokens", "64", "--max-sequences", "8"};
    flags.insert(flags.end(), more.begin(), more.end());
    process_.emplace(dir_.path(), listen, flags);
  }

  ChildProcess& process() { return process_->child; }
  // Blocks until it serves; its address.
  const std::string& AwaitReady() {
    EXPECT_TRUE(process_->WaitUntilReady());
    stub_ = v1::Ple::NewStub(grpc::CreateChannel(process_->address, grpc::InsecureChannelCredentials()));
    return process_->address;
  }
  v1::Ple::Stub& stub() { return *stub_; }

 private:
  TempDir dir_;
  std::optional<ServerProcess> process_;
  std::unique_ptr<v1::Ple::Stub> stub_;
};

std::vector<uint64_t> RowsOf11(v1::Ple::Stub& stub) {
  grpc::ClientContext context;
  v1::LookupRequest request;
  v1::LookupResponse response;
  request.add_segments()->set_num_tokens(1);
  request.add_token_ids(11);
  request.set_want_row_ids(true);
  const grpc::Status status = stub.Lookup(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.row_ids().begin(), response.row_ids().end()};
}

// These run where there is no GPU; where there is one, the automatic choice may fall on it.
TEST(B28, HelpAndVersionNeedNoDriver) {
  const Finished help = RunToEnd({PLEIAD_SERVER_BINARY, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("--device"));
  const Finished version = RunToEnd({PLEIAD_SERVER_BINARY, "--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.output, HasSubstr("pleiad-server "));
}

TEST(B28, TheAutomaticDeviceServes) {
  OwnServer server({"--device", "auto"});
  server.AwaitReady();
  EXPECT_EQ(RowsOf11(server.stub()), kRowsOf11);
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(server.stub().GetModel(&context, {}, &model).ok());
  EXPECT_THAT(model.device(), AnyOf("cpu", HasSubstr("cuda")));
}

// No host has this many: refused with or without a driver.
TEST(B28, AnExplicitCudaDeviceThatIsNotThereRefusesTheStartByName) {
  TempDir dir;
  WriteCheckpoint({}, dir.path());
  const Finished refused = RunToEnd({PLEIAD_SERVER_BINARY, "--model", dir.path(), "--listen", "127.0.0.1:0",
                                     "--metrics-listen", "127.0.0.1:0", "--device", "cuda:4000"});
  EXPECT_THAT(refused.code, AnyOf(1, 2)) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("cuda"));
}

TEST(B34, AnIdleStreamDoesNotHoldUpTheStop) {
  OwnServer server({"--drain-timeout", "100ms"});
  server.AwaitReady();
  grpc::ClientContext open_context;
  v1::OpenSequenceResponse opened;
  ASSERT_TRUE(server.stub().OpenSequence(&open_context, {}, &opened).ok());
  grpc::ClientContext context;
  auto stream = server.stub().ForwardStream(&context);
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Write({}));
  ASSERT_TRUE(stream->Read(&response));
  server.process().Signal(SIGTERM);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_THAT(stream->Finish().error_code(), AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED));
  const std::string log = server.process().DrainError();
  EXPECT_EQ(server.process().Wait(), 0) << log;
}

TEST(B34, TermWhileStartingAndTermTwiceEndInOrder) {
  {
    OwnServer server;
    ASSERT_TRUE(server.process().ReadErrorUntil("starting"));
    server.process().Signal(SIGTERM);
    const std::string log = server.process().DrainError();
    EXPECT_EQ(server.process().Wait(), 0) << log;
  }
  OwnServer server({"--drain-timeout", "1h"});
  server.AwaitReady();
  grpc::ClientContext context;
  v1::OpenSequenceResponse opened;  // would hold the drain up for its hour
  ASSERT_TRUE(server.stub().OpenSequence(&context, {}, &opened).ok());
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(server.process().ReadErrorUntil("drain"));
  server.process().Signal(SIGTERM);
  const std::string log = server.process().DrainError();
  EXPECT_EQ(server.process().Wait(), 0) << log;
}

TEST(B34, TheSamePortServesAgainAtOnce) {
  std::string address;
  {
    OwnServer server;
    address = server.AwaitReady();
    EXPECT_EQ(RowsOf11(server.stub()), kRowsOf11);
    server.process().Signal(SIGTERM);
    const std::string log = server.process().DrainError();
    EXPECT_EQ(server.process().Wait(), 0) << log;
  }
  OwnServer again({}, address);
  EXPECT_EQ(again.AwaitReady(), address);
  EXPECT_EQ(RowsOf11(again.stub()), kRowsOf11);
}

}  // namespace
}  // namespace pleiad::testing
