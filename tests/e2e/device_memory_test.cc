// Steps whose tensors lie in memory of the device that a client shares, on a device that stands in for a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/region_client.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_ipc.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 1 << 16;
constexpr uint64_t kTokenBytes = 128 * sizeof(float);

class DeviceMemoryTest : public ::testing::Test {
 protected:
  DeviceMemoryTest() {
    world_.AddEvent("gpu.ready");
    world_.AddEvent("gpu.done");
  }

  static std::unique_ptr<TempDir> Write() {
    auto dir = std::make_unique<TempDir>();
    WriteCheckpoint({}, dir->path());
    return dir;
  }
  ServerParts Parts() {
    ServerParts parts;
    parts.wrap_device = [this](std::unique_ptr<Device> device, const Geometry&) {
      return std::make_unique<SharingDevice>(std::move(device), &world_);
    };
    return parts;
  }
  static client::DeviceMemoryHandles Handles(uint64_t offset = 0, uint64_t bytes = kBytes) {
    const ClientMemoryHandles from = FakeHandles("gpu", offset, bytes);
    return {from.memory, from.gpu_uuid, from.ready_event, from.done_event, from.offset, from.bytes};
  }
  void Put(uint64_t offset, absl::string_view bytes) { std::memcpy(gpu_ + offset, bytes.data(), bytes.size()); }
  std::string Get(uint64_t offset, uint64_t bytes) const {
    return std::string(reinterpret_cast<const char*>(gpu_ + offset), bytes);
  }
  v1::ForwardResponse Run(const v1::ForwardRequest& request) {
    grpc::ClientContext context;
    const auto stream = server_.stub().ForwardStream(&context);
    v1::ForwardResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->WritesDone() && stream->Read(&response));
    EXPECT_TRUE(stream->Finish().ok());
    return response;
  }
  uint64_t Open() {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_TRUE(server_.stub().OpenSequence(&context, {}, &response).ok());
    return response.sequence_id();
  }
  std::string State(uint64_t sequence) {
    const std::string text = VisibleState(server_.stub(), sequence);
    return text.substr(text.find(" at "));
  }
  std::unique_ptr<client::SharedDeviceMemory> Share(uint64_t offset = 0, uint64_t bytes = kBytes) {
    auto memory = client_.ShareDeviceMemory(Handles(offset, bytes));
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }
  static v1::RegionRef Ref(const client::RegionSpan& span) {
    v1::RegionRef ref;
    ref.set_region_id(span.region_id);
    ref.set_offset(span.offset);
    ref.set_bytes(span.bytes);
    return ref;
  }

  FakeIpcWorld world_;
  std::byte* const gpu_ = world_.Allocate("gpu", kBytes);
  TempDir shm_;
  const std::unique_ptr<TempDir> model_ = Write();
  InProcessServer server_{model_->path(),
                          [this](ServerFlags& flags) {
                            flags.batch_invariant = true;
                            flags.max_tokens = 32;
                            flags.read_timeout = absl::Hours(1);  // no test waits for it
                            flags.allow_client_regions = true;
                            flags.shm_dir = shm_.path();
                          },
                          nullptr,
                          {},
                          Parts()};
  client::Client client_ = server_.Connect();
  std::mt19937 random_{31};
};

TEST_F(DeviceMemoryTest, StepsInItEqualInlineSteps) {
  EXPECT_THAT(client_.model().capabilities, ::testing::Contains("cuda-ipc"));
  const auto memory = Share();
  ASSERT_NE(memory, nullptr);
  const uint64_t calm = Open(), shared = Open();
  const uint64_t recorded = world_.At("gpu.done").recorded;
  for (uint64_t i = 0; i < 60; ++i) {
    const Passage passage = RandomPassage(random_, 1 + static_cast<uint32_t>(random_() % 24), client_.model());
    v1::ForwardRequest step = RequestOf(calm, passage);
    const bool halves = random_() % 2 == 0;
    if (halves) {
      step.mutable_highway()->set_dtype(v1::DTYPE_BF16);
      step.mutable_highway()->mutable_data()->resize(step.highway().data().size() / 2);
    }
    if (random_() % 2 == 0) step.mutable_output()->set_kind(v1::OUTPUT_KIND_HIGHWAY);
    const bool in_place = i % 3 == 0;
    const bool keeps = in_place || random_() % 2 == 0;
    step.mutable_output()->set_dtype(keeps == halves ? v1::DTYPE_BF16 : v1::DTYPE_F32);
    const bool zeros = i % 7 == 1;
    if (zeros) step.mutable_highway()->set_zeros(true);
    const v1::ForwardResponse wanted = Run(step);
    ASSERT_EQ(wanted.status().code(), 0) << wanted.status().message();

    v1::ForwardRequest request = step;
    request.mutable_segments(0)->set_sequence_id(shared);
    const uint64_t bytes = wanted.output().data().size();
    const uint64_t at = in_place && !zeros ? 32 : kBytes / 2 + 16;
    if (!zeros) {
      Put(32, step.highway().data());
      *request.mutable_highway()->mutable_region() = Ref(memory->Span(32, step.highway().data().size()));
    }
    if (at != 32) *request.mutable_output()->mutable_region() = Ref(memory->Span(at, bytes));
    const v1::ForwardResponse got = Run(request);
    ASSERT_EQ(got.status().code(), 0) << got.status().message();
    EXPECT_EQ(got.output().source_case(), v1::Tensor::kRegion);
    ASSERT_EQ(Get(at, bytes), wanted.output().data()) << "step " << i;
    ASSERT_EQ(State(shared), State(calm));
    EXPECT_EQ(world_.At("gpu.done").recorded, recorded + i + 1);
  }
}

TEST_F(DeviceMemoryTest, TheClientLibrarysStepsTakeIt) {
  const auto memory = Share();
  ASSERT_NE(memory, nullptr);
  const auto calm = *client_.OpenSequence(), shared = *client_.OpenSequence();
  const auto stream = *client_.OpenStream();
  for (int i = 0; i < 4; ++i) {
    const Passage passage = RandomPassage(random_, 7, client_.model());
    const std::string wanted = RunPassage(*stream, calm, passage);
    std::memcpy(gpu_, passage.highway.data(), wanted.size());
    client::Step step = StepOf(shared, passage, 0, passage.size());
    step.highway.data = {};
    step.highway.region = memory->Span(0, wanted.size());
    step.output_region = memory->Span(kBytes / 2, wanted.size());
    const auto result = stream->Run(std::move(step));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(Get(kBytes / 2, wanted.size()), wanted);
  }
}

TEST_F(DeviceMemoryTest, AStepWaitsForTheReadyEventAndNoLongerThanItsTime) {
  const auto memory = Share();
  ASSERT_NE(memory, nullptr);
  const auto sequence = *client_.OpenSequence(), other = *client_.OpenSequence();
  const auto stream = *client_.OpenStream();
  const Passage passage = RandomPassage(random_, 4, client_.model());
  const uint64_t bytes = 4 * kTokenBytes;
  client::Step step = StepOf(sequence, passage, 0, 4);
  step.highway.data = {};
  step.highway.region = memory->Span(0, bytes);
  step.output_region = memory->Span(bytes, bytes);
  world_.Set("gpu.ready", false);
  step.timeout = absl::Milliseconds(1);
  EXPECT_EQ(stream->Run(step).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(sequence.position(1), 0u);
  step.timeout = absl::InfiniteDuration();
  step.segments[0].position = 0;  // behind one that failed
  std::promise<absl::StatusOr<client::StepResult>> answer;
  const uint64_t asked = world_.At("gpu.ready").asked;
  stream->Submit(step, [&](absl::StatusOr<client::StepResult> result) { answer.set_value(std::move(result)); });
  world_.WaitForAsks("gpu.ready", asked + 2);
  EXPECT_TRUE(stream->Run(StepOf(other, passage, 0, 4)).ok()) << "others go on";
  world_.Set("gpu.ready", true);
  const auto result = answer.get_future().get();
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST_F(DeviceMemoryTest, ItsTensorsTakeNothingOfTheBytesInFlight) {
  const uint64_t bytes = 32 * kTokenBytes;
  InProcessServer small(
      model_->path(),
      [this](ServerFlags& flags) {
        flags.max_tokens = 32;
        flags.read_timeout = absl::Hours(1);
        flags.max_inflight_bytes = 50'000;  // one inline step of this size fits, two do not
        flags.allow_client_regions = true;
        flags.shm_dir = shm_.path();
      },
      nullptr, {}, Parts());
  client::Client client = small.Connect();
  const auto memory = client.ShareDeviceMemory(Handles());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto waiting = *client.OpenSequence(), other = *client.OpenSequence();
  const auto stream = *client.OpenStream();
  const Passage passage = RandomPassage(random_, 32, client.model());
  client::Step step = StepOf(waiting, passage, 0, 32);
  step.highway.data = {};
  step.highway.region = (*memory)->Span(0, bytes);
  step.output_region = (*memory)->Span(kBytes / 2, bytes);
  world_.Set("gpu.ready", false);
  std::promise<absl::StatusOr<client::StepResult>> answer;
  const uint64_t asked = world_.At("gpu.ready").asked;
  stream->Submit(step, [&](absl::StatusOr<client::StepResult> result) { answer.set_value(std::move(result)); });
  world_.WaitForAsks("gpu.ready", asked + 2);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status status =
      small.stub().Forward(&context, RequestOf(static_cast<uint64_t>(other.id()), passage), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  world_.Set("gpu.ready", true);
  EXPECT_TRUE(answer.get_future().get().ok());
}

TEST_F(DeviceMemoryTest, ItOutlivesItsStreamUntilTheLastStepEnds) {
  auto memory = Share();
  ASSERT_NE(memory, nullptr);
  const auto sequence = *client_.OpenSequence();
  const auto stream = *client_.OpenStream();
  const Passage passage = RandomPassage(random_, 4, client_.model());
  const uint64_t bytes = 4 * kTokenBytes;
  client::Step step = StepOf(sequence, passage, 0, 4);
  step.highway.data = {};
  step.highway.region = memory->Span(0, bytes);
  step.output_region = memory->Span(bytes, bytes);
  world_.Set("gpu.ready", false);
  std::promise<absl::StatusOr<client::StepResult>> answer;
  const uint64_t asked = world_.At("gpu.ready").asked;
  stream->Submit(step, [&](absl::StatusOr<client::StepResult> result) { answer.set_value(std::move(result)); });
  world_.WaitForAsks("gpu.ready", asked + 2);
  memory = nullptr;
  EXPECT_EQ(world_.OpenNow("gpu"), 1) << "the step uses it";
  world_.Set("gpu.ready", true);
  const auto result = answer.get_future().get();
  EXPECT_TRUE(result.ok()) << result.status();
  // The same step again names what is not attached any more.
  const auto again = stream->Run(std::move(step));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("must name a region"));
}

TEST_F(DeviceMemoryTest, AttachingNamesTheFieldThatIsWrong) {
  const struct {
    std::function<void(client::DeviceMemoryHandles&)> spoil;
    const char* text;
  } refusals[] = {
      {[](auto& h) { h.memory.pop_back(); }, "memory_handle 63 bytes: must have 64"},
      {[](auto& h) { h.memory = FakeHandle("x"); }, "memory_handle: no such memory"},
      {[](auto& h) { h.ready_event.clear(); }, "ready_event 0 bytes"},
      {[](auto& h) { h.done_event = std::string(60000, 'x'); }, "done_event 60000 bytes"},
      {[](auto& h) { h.gpu_uuid = "GPU-9"; }, "gpu_uuid GPU-9: must be the server's GPU, GPU-00000000-1111"},
      {[](auto& h) { h.bytes = 0; }, "bytes 0: must be positive"},
      {[](auto& h) { h.bytes = kBytes + 1; }, "must lie in the allocation, which has 65536 bytes"},
      {[](auto& h) { h.offset = 1; }, "offset 1 + bytes 65536"},
      {[](auto& h) { h.offset = ~uint64_t{0}; }, "must stay below 2^63"},
  };
  for (const auto& refusal : refusals) {
    client::DeviceMemoryHandles handles = Handles();
    refusal.spoil(handles);
    const auto memory = client_.ShareDeviceMemory(handles);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument) << refusal.text;
    EXPECT_THAT(std::string(memory.status().message()), HasSubstr(refusal.text));
  }
}

TEST_F(DeviceMemoryTest, OfOneStreamNoneOverlapAndTheyAreBounded) {
  RegionClient file(server_.stub(), shm_.path(), "file", 4096);
  v1::AttachRegionsRequest request;
  const ClientMemoryHandles from = FakeHandles("gpu", 0, 64);
  request.set_kind(v1::REGION_KIND_CUDA_IPC);
  request.set_memory_handle(from.memory);
  request.set_gpu_uuid(from.gpu_uuid);
  request.set_ready_event(from.ready_event);
  request.set_done_event(from.done_event);
  request.set_bytes(64);
  request.set_path("file");
  EXPECT_THAT(file.Attach(request).status().message(), HasSubstr("path 4 bytes: must be unset"));
  request.clear_path();
  EXPECT_EQ(file.Attach(request).status().code(), 0);
  EXPECT_THAT(file.Attach(request).status().message(), HasSubstr("overlaps a region of the same stream"));
  int refused = 0;
  for (uint64_t i = 1; i < 500; ++i) {
    request.set_offset(64 * i);
    const v1::AttachRegionsResponse response = file.Attach(request);
    if (response.status().code() == 0) continue;
    ++refused;
    EXPECT_EQ(response.status().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(refused, 499 - 62) << "64 of a stream, of which one is the file";
  EXPECT_EQ(world_.Opened("gpu"), 1);
}

TEST_F(DeviceMemoryTest, StepsThatNameItWronglyAreRefusedAndMoveNothing) {
  const auto memory = Share();
  ASSERT_NE(memory, nullptr);
  RegionClient file(server_.stub(), shm_.path(), "file", kBytes);
  const uint64_t sequence = Open();
  const std::string before = State(sequence);
  const Passage passage = RandomPassage(random_, 4, client_.model());
  const uint64_t bytes = 4 * kTokenBytes;
  const struct {
    std::function<void(v1::ForwardRequest&)> spoil;
    const char* text;
  } refusals[] = {
      {[&](auto& r) { *r.mutable_highway()->mutable_region() = Ref(memory->Span(8, bytes)); },
       "highway.region.offset 8: must lie at a multiple of 16"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = Ref(memory->Span(kBytes / 2 + 4, bytes)); },
       "output.region.offset 32772: must lie at a multiple of 16"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = Ref(memory->Span(bytes - 16, bytes)); },
       "must be the highway's span or apart"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = Ref(memory->Span(kBytes - bytes + 16, bytes)); },
       "must be a span within the region"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = Ref(memory->Span(~uint64_t{0}, bytes)); },
       "must be a span within the region"},
      {[&](auto& r) { *r.mutable_highway()->mutable_region() = Ref(memory->Span(0, bytes - 16)); },
       "must be 2048: 4 tokens"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = Ref(memory->Span(kBytes / 2, bytes + 16)); },
       "must be the output's 2048"},
      {[&](auto& r) { *r.mutable_output()->mutable_region() = file.Ref(0, bytes); },
       "must be of REGION_KIND_CUDA_IPC, or absent"},
      {[&](auto& r) {
         *r.mutable_highway()->mutable_region() = file.Ref(0, bytes);
         *r.mutable_output()->mutable_region() = Ref(memory->Span(0, bytes));
       },
       "must not be, unless the highway is in such a region too"},
      {[&](auto& r) {
         r.mutable_highway()->set_data(std::string(bytes, '\0'));
         *r.mutable_output()->mutable_region() = Ref(memory->Span(0, bytes));
       },
       "must not be, unless the highway is in such a region too"},
      {[&](auto& r) {
         r.clear_token_ids();
         *r.mutable_token_region() = Ref(memory->Span(0, 16));
       },
       "token_region.region_id: must name a region of REGION_KIND_SHM_FILE"},
  };
  for (const auto& refusal : refusals) {
    v1::ForwardRequest request = RequestOf(sequence, passage);
    request.mutable_output()->set_dtype(v1::DTYPE_F32);
    *request.mutable_highway()->mutable_region() = Ref(memory->Span(0, bytes));
    *request.mutable_output()->mutable_region() = Ref(memory->Span(kBytes / 2, bytes));
    refusal.spoil(request);
    const v1::ForwardResponse response = Run(request);
    EXPECT_EQ(response.status().code(), grpc::StatusCode::INVALID_ARGUMENT) << refusal.text;
    EXPECT_THAT(response.status().message(), HasSubstr(refusal.text));
    EXPECT_EQ(State(sequence), before) << refusal.text;
  }
}

}  // namespace
}  // namespace pleiad::testing
