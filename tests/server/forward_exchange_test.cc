#include "server/forward_exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace pleiad {
namespace {

ServiceLimits TestLimits() { return ComputeLimits(TestFlags(), 8).value(); }

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  return slices;
}

v1::ForwardResponse ResponseOf(const grpc::ByteBuffer& buffer) {
  std::string bytes;
  for (const grpc::Slice& slice : SlicesOf(buffer)) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  v1::ForwardResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes));
  return response;
}

TEST(ForwardExchange, TheTensorIsWhereItWasReceivedAndTheOutputIsSentFromWhereItWasWritten) {
  const v1::ForwardRequest sent = Step(77, 1, 1.5f);
  const std::string bytes = sent.SerializeAsString();
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer message(&slice, 1);
  OutputPool outputs;
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message));
  EXPECT_FALSE(message.Valid());
  EXPECT_EQ(exchange.bytes(TestLimits()), bytes.size() + sent.highway().data().size());
  const StepRequest step = exchange.MakeStep(TestLimits(), {}, &outputs);
  ASSERT_NE(step.input.data, nullptr);
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(step.input.data) + step.input.bytes, slice.end());
  std::byte* output = step.output.allocate(32);
  std::memset(output, 0x42, 32);
  StepResult result;
  result.output_dtype = DType::kBf16;
  const grpc::ByteBuffer answer = exchange.Answer(result, true);
  EXPECT_EQ(SlicesOf(answer).back().begin(), reinterpret_cast<const uint8_t*>(output));
  const v1::ForwardResponse response = ResponseOf(answer);
  EXPECT_EQ(response.request_id(), 77u);
  EXPECT_TRUE(response.draining());
  EXPECT_EQ(response.output().dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(response.output().data(), std::string(32, '\x42'));
}

TEST(ForwardExchange, AFailedStepHasNoOutput) {
  grpc::ByteBuffer message = BufferOf(Step(5, 1).SerializeAsString());
  OutputPool outputs;
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message));
  exchange.MakeStep(TestLimits(), {}, &outputs).output.allocate(32);
  StepResult result;
  result.outcome.code = absl::StatusCode::kDataLoss;
  const v1::ForwardResponse response = ResponseOf(exchange.Answer(result, false));
  EXPECT_FALSE(response.has_output());
  EXPECT_EQ(response.request_id(), 5u);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::DATA_LOSS);
}

TEST(ForwardExchange, AStepWithoutTokensHasNoOutput) {
  grpc::ByteBuffer message = BufferOf("");
  OutputPool outputs;
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message));
  EXPECT_EQ(exchange.MakeStep(TestLimits(), {}, &outputs).input.source, StepInput::Source::kAbsent);
  StepResult result;
  EXPECT_FALSE(ResponseOf(exchange.Answer(result, false)).has_output());
}

TEST(ForwardExchange, OtherBytesAreNoRequest) {
  grpc::ByteBuffer message = BufferOf("\x08");
  EXPECT_FALSE(ForwardExchange().Receive(&message));
}

}  // namespace
}  // namespace pleiad
