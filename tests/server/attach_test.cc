// Attaching where the device's driver takes its time.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_ipc.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

struct AttachCall {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRegionsRequest, v1::AttachRegionsResponse>> stream;
};

TEST(Attach, PinsThatTakeLongHoldUpNoStepAndAStreamThatEndsMeanwhileLeavesNothing) {
  constexpr size_t kCalls = 60;  // more than gRPC has threads
  const testing::TempDir dir("/dev/shm");
  testing::FakeIpcWorld world;
  ServerFlags flags = TestFlags();
  flags.listen = {"unix:" + (dir / "socket")};
  flags.allow_client_regions = true;
  flags.shm_dir = dir.path();
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, flags);
  server.engine().SetImports(ImportTable::Create(world.Driver()));
  world.HoldPins(true);
  std::vector<std::unique_ptr<AttachCall>> calls;
  for (size_t i = 0; i < kCalls; ++i) {
    const std::string name = absl::StrCat("file-", i);
    std::ofstream(dir / name, std::ios::binary) << std::string(4096, 'x');
    v1::AttachRegionsRequest attach;
    attach.set_kind(v1::REGION_KIND_SHM_FILE);
    attach.set_path(name);
    attach.set_bytes(4096);
    calls.push_back(std::make_unique<AttachCall>());
    calls.back()->stream = server.stub().AttachRegions(&calls.back()->context);
    ASSERT_TRUE(calls.back()->stream->Write(attach));
  }
  world.WaitForPins(1);
  for (uint64_t id = 1; id <= 4; ++id) {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    EXPECT_TRUE(server.stub().Forward(&context, Step(id, 1), &response).ok());
  }
  for (size_t i = 0; i < kCalls; i += 2) {
    calls[i]->context.TryCancel();
    EXPECT_EQ(calls[i]->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  world.HoldPins(false);
  v1::AttachRegionsResponse response;
  for (size_t i = 1; i < kCalls; i += 2) {
    ASSERT_TRUE(calls[i]->stream->Read(&response));
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
  }
  // Jobs run in order, so those of the streams that ended are through but for the last.
  while (server.Scrape().find(absl::StrCat("pleiad_regions ", kCalls / 2, "\n")) == std::string::npos) {
  }
  for (size_t i = 1; i < kCalls; i += 2) {
    EXPECT_TRUE(calls[i]->stream->WritesDone());
    EXPECT_TRUE(calls[i]->stream->Finish().ok());
  }
  EXPECT_NE(server.Scrape().find("pleiad_regions 0\n"), std::string::npos);
  while (server.Scrape().find("pleiad_region_pinned_bytes 0\n") == std::string::npos) {
  }
}

}  // namespace
}  // namespace pleiad
