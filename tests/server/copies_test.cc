// Counts the bytes that the process copies while a long step goes through the server, by whichever memcpy or memmove:
// the pieces that a tensor comes in may be short. The client beside the server takes and gives slices, so the copies
// are the server's, gRPC's and the engine's.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "proto/wire/forward_message.h"
#include "tests/server/test_server.h"
#include "tests/support/raw_call.h"

namespace {

std::atomic<uint64_t> copied{0};

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

}  // namespace

// In place of the C library's, in all libraries of the process.
extern "C" {
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

TEST(Copies, TheCounterSeesACopyByProtobuf) {
  const std::string bytes(kTensorBytes, 'x');
  v1::Tensor tensor;
  copied = 0;
  tensor.set_data(bytes);
  EXPECT_GE(copied.load(), kTensorBytes);
}

}  // namespace
}  // namespace pleiad
