// Counts the bytes that the process copies while a long step goes through the server, by whichever memcpy or memmove:
// the pieces that a tensor comes in may be short. The client beside the server takes and gives slices, so the copies
// are the server's, gRPC's and the engine's. What pread and pwrite move is counted apart.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "proto/wire/forward_message.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_ipc.h"
#include "tests/support/raw_call.h"
#include "tests/support/temp_dir.h"

namespace {

std::atomic<uint64_t> copied{0};
std::atomic<uint64_t> read_from_files{0}, written_to_files{0};

// Calls nothing: a loop would be made a call of memcpy.
void* CopyUp(void* to, const void* from, size_t bytes) {
  void* const start = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return start;
}

void* Count(void* to, const void* from, size_t bytes) {
  copied.fetch_add(bytes, std::memory_order_relaxed);
  return CopyUp(to, from, bytes);
}

void* CountMove(void* to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const char*>(from);
  if (to <= from || to >= begin + bytes) return Count(to, from, bytes);
  copied.fetch_add(bytes, std::memory_order_relaxed);
  auto* last_to = static_cast<char*>(to) + bytes - 1;
  const char* last_from = begin + bytes - 1;
  asm volatile("std\n\trep movsb\n\tcld" : "+D"(last_to), "+S"(last_from), "+c"(bytes) : : "memory");
  return to;
}

// Of bytes, once they are moved.
ssize_t CountFile(std::atomic<uint64_t>& count, ssize_t bytes) {
  if (bytes > 0) count.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return bytes;
}

}  // namespace

// In place of the C library's, in all libraries of the process.
extern "C" {
ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  return CountFile(read_from_files, ::syscall(SYS_pread64, fd, to, bytes, at));
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  return CountFile(written_to_files, ::syscall(SYS_pwrite64, fd, from, bytes, at));
}
void* memcpy(void* to, const void* from, size_t bytes) { return Count(to, from, bytes); }
void* memmove(void* to, const void* from, size_t bytes) { return CountMove(to, from, bytes); }
void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t) { return Count(to, from, bytes); }
void* __memmove_chk(void* to, const void* from, size_t bytes, size_t) { return CountMove(to, from, bytes); }
}

namespace pleiad {
namespace {

constexpr uint32_t kTokens = 100'000;
constexpr uint64_t kTensorBytes = uint64_t{kTokens} * 8 * sizeof(float);

ServerFlags LongSteps() {
  ServerFlags flags = TestFlags();
  flags.max_tokens = kTokens;
  return flags;
}

grpc::ByteBuffer LongStep() {
  v1::ForwardRequest request;
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(1);
  segment->set_num_tokens(kTokens);
  const auto tensor = std::make_shared<std::string>(kTensorBytes, 'x');
  const grpc::Slice data = ReferenceSlice({reinterpret_cast<const std::byte*>(tensor->data()), tensor->size()}, tensor);
  return SerializeForwardMessage(request, v1::DTYPE_F32, {&data, 1});
}

// The answer's slices are a long step's.
void ExpectAnswer(grpc::ByteBuffer answer) {
  v1::ForwardResponse response;
  TensorBytes tensor;
  ASSERT_TRUE(ParseForwardMessage(&answer, &response, &tensor));
  ASSERT_EQ(response.status().code(), 0) << response.status().message();
  ASSERT_EQ(tensor.size(), kTensorBytes);
  for (const TensorBytes::Piece& piece : tensor.pieces()) {
    ASSERT_EQ(piece.front(), std::byte{'x'});
    ASSERT_EQ(piece.back(), std::byte{'x'});
  }
}

TEST(Copies, AStepOnAStreamIsCopiedOnceByItsDevice) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, LongSteps());
  testing::RawStream stream(server.channel());
  for (int round = 0; round < 4; ++round) {
    const grpc::ByteBuffer step = LongStep();
    copied = 0;
    ASSERT_TRUE(stream.Write(step));
    grpc::ByteBuffer answer;
    ASSERT_TRUE(stream.Read(&answer));
    const uint64_t bytes = copied;
    ExpectAnswer(std::move(answer));
    EXPECT_GE(bytes, kTensorBytes) << "the fake device's copy of input to output is counted";
    EXPECT_LT(bytes, kTensorBytes + kTensorBytes / 20);
  }
}

TEST(Copies, AUnaryStepToo) {
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, LongSteps());
  const grpc::ByteBuffer step = LongStep();
  copied = 0;
  grpc::ByteBuffer answer;
  ASSERT_TRUE(testing::ForwardRaw(server.channel(), step, &answer).ok());
  const uint64_t bytes = copied;
  ExpectAnswer(std::move(answer));
  EXPECT_GE(bytes, kTensorBytes);
  EXPECT_LT(bytes, kTensorBytes + kTensorBytes / 20);
}

ServerFlags WithRegions(const testing::TempDir& dir) {
  ServerFlags flags = LongSteps();
  flags.listen = {"unix:" + (dir / "socket")};
  flags.allow_client_regions = true;
  flags.shm_dir = dir.path();
  return flags;
}

v1::AttachRegionsRequest FileOf(const testing::TempDir& dir) {
  std::ofstream(dir / "tensors", std::ios::binary) << std::string(2 * kTensorBytes, 'x');
  v1::AttachRegionsRequest attach;
  attach.set_kind(v1::REGION_KIND_SHM_FILE);
  attach.set_path("tensors");
  attach.set_bytes(2 * kTensorBytes);
  return attach;
}

struct Copied {
  uint64_t bytes = 0, read = 0, written = 0;
};

// Of two steps in the region that `attach` asks for: in place, and with the output behind the input.
std::vector<Copied> StepsInRegion(TestServer& server, const v1::AttachRegionsRequest& attach) {
  std::vector<Copied> steps;
  grpc::ClientContext context;
  const auto regions = server.stub().AttachRegions(&context);
  v1::AttachRegionsResponse attached;
  EXPECT_TRUE(regions->Write(attach) && regions->Read(&attached));
  EXPECT_EQ(attached.status().code(), 0) << attached.status().message();
  testing::RawStream stream(server.channel());
  for (const uint64_t output_at : {uint64_t{0}, kTensorBytes}) {
    v1::ForwardRequest request;
    request.add_segments()->set_sequence_id(1);
    request.mutable_segments(0)->set_num_tokens(kTokens);
    request.mutable_highway()->set_dtype(v1::DTYPE_F32);
    request.mutable_highway()->mutable_region()->set_region_id(attached.region_id());
    request.mutable_highway()->mutable_region()->set_bytes(kTensorBytes);
    *request.mutable_output()->mutable_region() = request.highway().region();
    request.mutable_output()->mutable_region()->set_offset(output_at);
    const grpc::ByteBuffer step = SerializeForwardMessage(request);
    copied = read_from_files = written_to_files = 0;
    grpc::ByteBuffer answer;
    EXPECT_TRUE(stream.Write(step) && stream.Read(&answer));
    steps.push_back({copied, read_from_files, written_to_files});
    v1::ForwardResponse response;
    TensorBytes tensor;
    EXPECT_TRUE(ParseForwardMessage(&answer, &response, &tensor));
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
  }
  context.TryCancel();
  (void)regions->Finish();
  return steps;
}

TEST(Copies, AStepInARegionIsReadOnceAndWrittenOnceBesideItsDevicesCopy) {
  testing::TempDir dir;
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, WithRegions(dir));
  for (const Copied& step : StepsInRegion(server, FileOf(dir))) {
    EXPECT_EQ(step.read, kTensorBytes);
    EXPECT_EQ(step.written, kTensorBytes);
    EXPECT_GE(step.bytes, kTensorBytes) << "the fake device's";
    EXPECT_LT(step.bytes, kTensorBytes + kTensorBytes / 20);
  }
}

TEST(Copies, AStepInAFileWhosePagesTheDeviceHoldsIsCopiedByItAlone) {
  testing::TempDir dir("/dev/shm");
  testing::FakeIpcWorld world;
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, WithRegions(dir));
  server.engine().SetImports(ImportTable::Create(world.Driver()));
  for (const Copied& step : StepsInRegion(server, FileOf(dir))) {
    EXPECT_EQ(step.read + step.written, 0u);
    EXPECT_GE(step.bytes, kTensorBytes) << "the fake device's";
    EXPECT_LT(step.bytes, kTensorBytes + kTensorBytes / 20);
  }
}

TEST(Copies, AStepInMemoryOfTheDeviceIsNotCopied) {
  testing::TempDir dir;
  testing::FakeIpcWorld world;
  world.Allocate("gpu", 2 * kTensorBytes);
  world.AddEvent("gpu.ready");
  world.AddEvent("gpu.done");
  TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoaded, WithRegions(dir));
  server.engine().SetImports(ImportTable::Create(world.Driver()));
  const ClientMemoryHandles handles = testing::FakeHandles("gpu", 0, 2 * kTensorBytes);
  v1::AttachRegionsRequest attach;
  attach.set_kind(v1::REGION_KIND_CUDA_IPC);
  attach.set_memory_handle(handles.memory);
  attach.set_gpu_uuid(handles.gpu_uuid);
  attach.set_ready_event(handles.ready_event);
  attach.set_done_event(handles.done_event);
  attach.set_bytes(handles.bytes);
  for (const Copied& step : StepsInRegion(server, attach)) {
    EXPECT_LT(step.bytes + step.read + step.written, kTensorBytes / 20);
  }
}

TEST(Copies, TheCounterSeesACopyByProtobuf) {
  const std::string bytes(kTensorBytes, 'x');
  v1::Tensor tensor;
  copied = 0;
  tensor.set_data(bytes);
  EXPECT_GE(copied.load(), kTensorBytes);
}

}  // namespace
}  // namespace pleiad
