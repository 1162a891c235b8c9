#include "server/forward_exchange.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/convert.h"
#include "tests/server/test_server.h"
#include "tests/support/temp_dir.h"

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
  ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
  EXPECT_FALSE(message.Valid());
  const uint64_t tensors = bytes.size() + sent.highway().data().size();
  EXPECT_GT(exchange.bytes(TestLimits()), tensors) << "the request as it is kept too";
  EXPECT_LT(exchange.bytes(TestLimits()), tensors + 1000);
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

TEST(ForwardExchange, AnAnswerIsTheBytesOfTheGeneratedClass) {
  std::mt19937_64 random(5);
  const auto number = [&random] { return random() % 4 == 0 ? 0 : random() >> random() % 63 >> 2; };
  for (int round = 0; round < 2000; ++round) {
    grpc::ByteBuffer message = BufferOf(Step(number(), 1).SerializeAsString());
    OutputPool outputs;
    ForwardExchange exchange;
    ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
    const StepRequest step = exchange.MakeStep(TestLimits(), {}, &outputs);
    StepResult result;
    for (uint64_t i = random() % 5; i > 0; --i) {
      result.segments.push_back({SequenceId(number()), Position(number()), Position(number())});
    }
    result.stats.rows = {number() >> 8, number() >> 8, number() >> 8};
    result.stats.batch_tokens = static_cast<uint32_t>(number());
    result.stats.queue = absl::Microseconds(number() % 1000000);
    result.stats.resolve = absl::Microseconds(-1);
    result.stats.device = absl::Nanoseconds(number() % 1000000);
    result.output_dtype = round % 2 == 0 ? DType::kF32 : DType::kBf16;
    v1::ForwardResponse expected;
    FillResponse(result, expected);
    expected.set_request_id(exchange.request().request_id());
    expected.set_draining(round % 3 == 0);
    if (round % 4 != 0) {
      std::memset(step.output.allocate(32), 0x42, 32);
      expected.mutable_output()->set_dtype(ToProto(result.output_dtype));
      expected.mutable_output()->set_data(std::string(32, '\x42'));
    }
    const grpc::ByteBuffer answer = exchange.Answer(result, round % 3 == 0);
    std::string bytes;
    for (const grpc::Slice& slice : SlicesOf(answer)) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    ASSERT_EQ(bytes, expected.SerializeAsString()) << expected.ShortDebugString();
  }
}

TEST(ForwardExchange, ManySegmentsCountWithWhatTheyTakeAndUnknownFieldsInThemToo) {
  v1::ForwardRequest request;
  for (uint64_t i = 1; i <= 100; ++i) request.add_segments()->set_sequence_id(i);
  const auto held = [](const v1::ForwardRequest& sent) {
    const std::string bytes = sent.SerializeAsString();
    grpc::ByteBuffer message = BufferOf(bytes);
    ForwardExchange exchange;
    EXPECT_TRUE(exchange.Receive(&message, TestLimits()));
    return exchange.bytes(TestLimits()) - bytes.size();
  };
  const uint64_t plain = held(request);
  v1::ForwardRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(request.SerializeAsString()));
  EXPECT_NEAR(static_cast<double>(plain), static_cast<double>(parsed.SpaceUsedLong() - sizeof(parsed)), 1000);
  for (v1::Segment& segment : *request.mutable_segments()) {
    segment.GetReflection()->MutableUnknownFields(&segment)->AddVarint(9, 1);
  }
  EXPECT_GT(held(request), plain + 100 * sizeof(google::protobuf::UnknownField));
}

TEST(ForwardExchange, RequestsOfAnyOrderOfFieldsAreTheSameStepAndCountAlike) {
  v1::ForwardRequest request = Step(3, 1), front;
  for (uint64_t i = 1; i <= 100; ++i) {
    request.add_segments()->set_sequence_id(i);
    request.mutable_segments()->rbegin()->set_position(0);
    request.add_token_ids(static_cast<uint32_t>(i));
  }
  // The first segment before all others, so that they are in two places.
  *front.add_segments() = request.segments(0);
  const std::string plain = request.SerializeAsString();
  request.mutable_segments()->erase(request.segments().begin());
  const std::string other = front.SerializeAsString() + request.SerializeAsString();
  std::vector<uint64_t> held;
  for (const std::string& bytes : {plain, other}) {
    grpc::ByteBuffer message = BufferOf(bytes);
    OutputPool outputs;
    ForwardExchange exchange;
    ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
    held.push_back(exchange.bytes(TestLimits()));
    const StepRequest step = exchange.MakeStep(TestLimits(), {}, &outputs);
    ASSERT_EQ(step.segments.size(), 101u);
    EXPECT_EQ(step.segments[100].sequence.value(), 100u);
    EXPECT_TRUE(step.segments[100].position.has_value());
    EXPECT_EQ(step.token_ids.back(), 100u);
    EXPECT_EQ(step.input.bytes, Step(3, 1).highway().data().size());
  }
  EXPECT_NEAR(static_cast<double>(held[0]), static_cast<double>(held[1]), 1000);
}

TEST(ForwardExchange, AnotherThreadMayAnswerAndForget) {
  v1::ForwardRequest request = Step(3, 1);
  for (uint64_t i = 1; i <= 500; ++i) request.add_segments()->set_sequence_id(i);  // more than one block of the arena
  ForwardExchange exchange;
  std::thread([&exchange, &request] {
    grpc::ByteBuffer message = BufferOf(request.SerializeAsString());
    EXPECT_TRUE(exchange.Receive(&message, TestLimits()));
  }).join();
  EXPECT_EQ(exchange.request().segments_size(), request.segments_size());
  EXPECT_EQ(ResponseOf(exchange.Answer({}, false)).request_id(), 3u);
  exchange.Forget();
}

TEST(ForwardExchange, AFailedStepHasNoOutput) {
  grpc::ByteBuffer message = BufferOf(Step(5, 1).SerializeAsString());
  OutputPool outputs;
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
  exchange.MakeStep(TestLimits(), {}, &outputs).output.allocate(32);
  StepResult result;
  result.outcome.code = absl::StatusCode::kDataLoss;
  const v1::ForwardResponse response = ResponseOf(exchange.Answer(result, false));
  EXPECT_FALSE(response.has_output());
  EXPECT_EQ(response.request_id(), 5u);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::DATA_LOSS);
}

TEST(ForwardExchange, OutputsGoToTheirRegionsBeforeTheStepEndsAndOneThatCannotIsLost) {
  testing::TempDir dir;
  const std::string path = dir / "tensors";
  std::ofstream(path, std::ios::binary) << std::string(64, 'x');
  const auto table = RegionTable::Open(dir.path()).value();
  v1::AttachRegionsRequest attach;
  attach.set_kind(v1::REGION_KIND_SHM_FILE);
  attach.set_path("tensors");
  attach.set_bytes(64);
  v1::ForwardRequest request = Step(5, 1);
  request.mutable_output()->mutable_region()->set_region_id(table->Attach(attach, nullptr, nullptr).id);
  request.mutable_output()->mutable_region()->set_offset(32);
  request.mutable_output()->mutable_region()->set_bytes(32);
  for (const bool cut : {false, true}) {
    grpc::ByteBuffer message = BufferOf(request.SerializeAsString());
    OutputPool outputs;
    ForwardExchange exchange;
    ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
    const StepRequest step = exchange.MakeStep(TestLimits(), {.table = table.get()}, &outputs);
    ASSERT_FALSE(step.refused.has_value()) << step.refused->message;
    std::memset(step.output.allocate(32), 'y', 32);
    if (cut) std::filesystem::resize_file(path, 63);
    const std::optional<Outcome> lost = step.output.deliver();
    std::stringstream file;
    file << std::ifstream(path, std::ios::binary).rdbuf();
    if (!cut) {
      EXPECT_FALSE(lost.has_value());
      EXPECT_EQ(file.str(), std::string(32, 'x') + std::string(32, 'y'));
      EXPECT_EQ(ResponseOf(exchange.Answer({}, false)).output().region().offset(), 32u);
    } else {
      ASSERT_TRUE(lost.has_value());
      EXPECT_EQ(lost->code, absl::StatusCode::kDataLoss);
      EXPECT_THAT(lost->message, ::testing::HasSubstr("63 bytes now"));
    }
  }
}

TEST(ForwardExchange, AStepWithoutTokensHasNoOutput) {
  grpc::ByteBuffer message = BufferOf("");
  OutputPool outputs;
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message, TestLimits()));
  EXPECT_EQ(exchange.MakeStep(TestLimits(), {}, &outputs).input.source, StepInput::Source::kAbsent);
  StepResult result;
  EXPECT_FALSE(ResponseOf(exchange.Answer(result, false)).has_output());
}

TEST(ForwardExchange, OtherBytesAreNoRequest) {
  grpc::ByteBuffer message = BufferOf("\x08");
  EXPECT_FALSE(ForwardExchange().Receive(&message, TestLimits()));
}

// The smallest segment has two bytes and takes thirty times as many once it is parsed.
TEST(ForwardExchange, ManyEmptySegmentsAreRefusedBeforeTheyTakeMemory) {
  const ServiceLimits limits = TestLimits();
  v1::ForwardRequest sent;
  for (uint64_t i = 0; i < limits.max_segments; ++i) sent.add_segments();
  grpc::ByteBuffer message = BufferOf(sent.SerializeAsString());
  OutputPool outputs;
  ForwardExchange full;
  ASSERT_TRUE(full.Receive(&message, limits));
  EXPECT_FALSE(full.MakeStep(limits, {}, &outputs).refused) << "as many as there may be";

  for (int i = 0; i < 1'000'000; ++i) sent.add_segments();
  const std::string bytes = sent.SerializeAsString();
  message = BufferOf(bytes + Step(9, 1).SerializeAsString());
  ForwardExchange exchange;
  ASSERT_TRUE(exchange.Receive(&message, limits));
  EXPECT_LT(exchange.bytes(limits), bytes.size() + 200'000);
  const StepRequest step = exchange.MakeStep(limits, {}, &outputs);
  ASSERT_TRUE(step.refused);
  EXPECT_THAT(step.refused->message, ::testing::HasSubstr("at most 1040 segments"));
  EXPECT_LE(step.segments.size(), limits.max_segments);
  StepResult result;
  result.outcome = *step.refused;
  const v1::ForwardResponse response = ResponseOf(exchange.Answer(result, false));
  EXPECT_EQ(response.request_id(), 9u) << "which came behind the segments";
  EXPECT_EQ(response.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(response.status().details(0).reason(), v1::REASON_TOO_MANY_TOKENS);
}

TEST(ForwardExchange, AnythingElseThatIsTooLargeBesideTheTensorIsRefused) {
  const ServiceLimits limits = TestLimits();
  std::string unknown_fields;
  while (unknown_fields.size() <= limits.request_bytes) unknown_fields += "\x70\x01";  // field 14
  v1::ForwardRequest ids = Step(9, 1), releases = Step(9, 1);
  for (uint64_t i = 0; i < limits.request_bytes; ++i) ids.add_token_ids(1);
  for (uint64_t i = 0; i < limits.request_bytes / 8; ++i) releases.add_release_after(i);
  OutputPool outputs;
  for (const std::string& bytes :
       {Step(9, 1).SerializeAsString() + unknown_fields, ids.SerializeAsString(), releases.SerializeAsString()}) {
    grpc::ByteBuffer message = BufferOf(bytes);
    ForwardExchange exchange;
    ASSERT_TRUE(exchange.Receive(&message, limits));
    EXPECT_LT(exchange.bytes(limits), bytes.size() + limits.request_bytes * 12);
    const StepRequest step = exchange.MakeStep(limits, {}, &outputs);
    ASSERT_TRUE(step.refused);
    EXPECT_EQ(step.segments.size(), 1u) << "which came before";
    EXPECT_EQ(exchange.request().request_id(), 9u);
  }
}

}  // namespace
}  // namespace pleiad
