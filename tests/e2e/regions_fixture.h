// A server that allows regions, and steps that can be put into one. Files are copied by the CPU, or their pages held by
// a device that stands in for a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/region_client.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_ipc.h"

namespace pleiad::testing {

inline constexpr uint64_t kRegionBytes = 1 << 16;
inline constexpr uint32_t kChannels = 128;  // of the toy checkpoint
inline constexpr uint64_t kTokenBytes = kChannels * sizeof(float);

enum class RegionFiles : uint8_t { kCopied, kHeld };

inline std::string NameOfFiles(const ::testing::TestParamInfo<RegionFiles>& info) {
  return info.param == RegionFiles::kHeld ? "Held" : "Copied";
}

class RegionsTest : public ::testing::TestWithParam<RegionFiles> {
 protected:
  RegionsTest()
      : model_(Write()),
        shm_(held() ? "/dev/shm" : std::filesystem::temp_directory_path()),
        server_(
            model_->path(),
            [this](ServerFlags& flags) {
              flags.batch_invariant = true;
              flags.max_tokens = 32;
              flags.listen.push_back("127.0.0.1:0");
              flags.allow_client_regions = true;
              flags.shm_dir = shm_.path();
              if (!held()) flags.shm_pinned_bytes = 0;
            },
            nullptr, {}, Parts()) {}

  static bool held() { return GetParam() == RegionFiles::kHeld; }
  ServerParts Parts() {
    ServerParts parts;
    parts.wrap_device = [this](std::unique_ptr<Device> device, const Geometry&) {
      return std::make_unique<SharingDevice>(std::move(device), &world_);
    };
    return parts;
  }

  static std::unique_ptr<TempDir> Write() {
    auto dir = std::make_unique<TempDir>();
    WriteCheckpoint({}, dir->path());
    return dir;
  }
  static v1::ForwardResponse Run(v1::Ple::Stub& stub, const v1::ForwardRequest& request) {
    grpc::ClientContext context;
    const auto stream = stub.ForwardStream(&context);
    v1::ForwardResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->WritesDone() && stream->Read(&response));
    EXPECT_TRUE(stream->Finish().ok());
    return response;
  }
  v1::ForwardResponse Run(const v1::ForwardRequest& request) { return Run(server_.stub(), request); }
  uint64_t Open() {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_TRUE(server_.stub().OpenSequence(&context, {}, &response).ok());
    return response.sequence_id();
  }
  uint64_t PositionOf(uint64_t sequence, uint64_t epoch = 0) {
    v1::GetSequenceRequest request;
    request.set_sequence_id(sequence);
    request.set_epoch(epoch);
    grpc::ClientContext context;
    v1::GetSequenceResponse response;
    EXPECT_TRUE(server_.stub().GetSequence(&context, request, &response).ok());
    return response.layers(0).position();
  }
  std::string State(uint64_t sequence) {
    const std::string text = VisibleState(server_.stub(), sequence);
    return text.substr(text.find(" at "));
  }
  std::unique_ptr<RegionClient> NewRegion(const std::string& name) {
    return std::make_unique<RegionClient>(server_.stub(), shm_.path(), name, kRegionBytes);
  }

  FakeIpcWorld world_;
  const std::unique_ptr<TempDir> model_;
  TempDir shm_;
  InProcessServer server_;
  client::Client client_ = server_.Connect();
  std::mt19937 random_{30};
};

// A step inline, and the same with its parts in regions; what comes back must be the same bytes.
struct Placed {
  v1::ForwardRequest request;
  uint64_t output_offset = 0;  // in the region; of inline outputs not used
};

enum class Where : uint8_t { kInPlace, kApart, kInputAlone, kOutputAlone, kTokensToo, kEnd };

inline Placed Place(const v1::ForwardRequest& step, Where where, const RegionClient& region, uint64_t output_bytes) {
  Placed placed{step};
  v1::ForwardRequest& request = placed.request;
  const std::string data = step.highway().data();
  if (where != Where::kOutputAlone) {
    region.Put(0, data);
    *request.mutable_highway()->mutable_region() = region.Ref(0, data.size());
  }
  if (where != Where::kInPlace) {
    placed.output_offset = kRegionBytes / 2 + (step.token_ids_size() % 2 == 0 ? 16 : 3);  // any alignment
    *request.mutable_output()->mutable_region() = region.Ref(placed.output_offset, output_bytes);
  }
  if (where == Where::kInputAlone) {
    placed.output_offset = 0;
    *request.mutable_output()->mutable_region() = region.Ref(0, data.size());
  }
  if (where == Where::kTokensToo) {
    std::string ids(step.token_ids().size() * sizeof(uint32_t), '\0');
    std::memcpy(ids.data(), step.token_ids().data(), ids.size());
    region.Put(kRegionBytes - 400, ids);
    *request.mutable_token_region() = region.Ref(kRegionBytes - 400, ids.size());
    request.clear_token_ids();
  }
  return placed;
}

}  // namespace pleiad::testing
