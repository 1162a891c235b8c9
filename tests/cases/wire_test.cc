// Tensors and messages of every length over live streams.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cases/stack.h"
#include "tests/support/raw_call.h"

namespace pleiad::testing {
namespace {

std::shared_ptr<grpc::Channel> ChannelOf(const Stack& stack) {
  return grpc::CreateChannel(stack.address(), grpc::InsecureChannelCredentials());
}

TEST(Wire, ATensorOfAnyOtherLengthIsRefusedAndLeavesNoTrace) {
  Stack stack;
  const uint64_t sequence = stack.Open();
  const Story story = stack.RandomStory(61, 1);
  const Stack::Whole whole = stack.FreshRun(story);
  const std::vector<float> first = stack.Step(sequence, story.Part(0, 60));
  for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_BF16}) {
    const size_t size = stack.channels() * (dtype == v1::DTYPE_F32 ? 4 : 2);
    std::vector<v1::ForwardRequest> requests;
    for (size_t bytes = 0; bytes <= size + 1; ++bytes) {
      if (bytes == size) continue;
      v1::ForwardRequest request = stack.Request(sequence, story.Part(60, 1), 60);
      request.mutable_highway()->set_dtype(dtype);
      request.mutable_highway()->mutable_data()->resize(bytes);
      requests.push_back(std::move(request));
    }
    for (const Answer& answer : stack.Stream(requests)) {
      ASSERT_EQ(answer.response.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
      ASSERT_EQ(answer.reason(), v1::REASON_SIZE_MISMATCH);
      ASSERT_FALSE(answer.response.has_output());
    }
  }
  EXPECT_TRUE(SameBits(Join(first, stack.Step(sequence, story.Part(60, 1), 60)), whole.output));
  EXPECT_EQ(stack.At(sequence), whole.end);
}

TEST(Wire, AMessageCutAtAnyByteIsAnErrorAndTheServerGoesOn) {
  Stack stack;
  const uint64_t sequence = stack.Open();
  const Story story = stack.RandomStory(60, 2);
  const auto channel = ChannelOf(stack);
  const v1::ForwardRequest move = [&] {
    v1::ForwardRequest request = stack.Request(sequence, story.Part(0, 2), 0);
    request.mutable_segments(0)->set_fresh(true);
    return request;
  }();
  const std::string whole = move.SerializeAsString();
  size_t malformed = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string part = whole.substr(0, size);
    const bool parses = v1::ForwardRequest().ParseFromString(part);
    const RawResult result = StreamRaw(channel, {whole, part});
    ASSERT_EQ(result.status.error_code(), parses ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT) << size;
    ASSERT_EQ(result.responses.size(), parses ? 2u : 1u) << size;
    ASSERT_EQ(result.responses[0].status().code(), 0) << size;
    ASSERT_EQ(ForwardRaw(channel, part).status.ok(), part.empty()) << size;
    if (parses && size > 0) {
      ASSERT_NE(result.responses[1].status().code(), 0) << size;
    }
    malformed += parses ? 0 : 1;
  }
  EXPECT_GT(malformed, whole.size() - 10);
  const Stack::Whole fresh = stack.FreshRun(story);
  const Answer again = stack.Forward(stack.Request(sequence, story, 0));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(SameBits(again.output(), fresh.output));
}

// Longer than gRPC's frames and reads: it comes in many slices, which end within tokens and values.
TEST(Wire, ATensorInManySlicesEqualsItsTokensOneByOne) {
  Stack stack;
  const Story story = stack.RandomStory(256, 3);
  for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_BF16}) {
    const auto request = [&](uint64_t sequence, const Story& part) {
      v1::ForwardRequest step = stack.Request(sequence, part);
      step.mutable_output()->set_kind(v1::OUTPUT_KIND_HIGHWAY);
      step.mutable_output()->set_dtype(v1::DTYPE_F32);
      if (dtype == v1::DTYPE_BF16) {
        // The upper halves: an odd number of bytes before the tensor lets slices end within values.
        std::string halves;
        for (size_t i = 2; i < step.highway().data().size(); i += 4) halves += step.highway().data().substr(i, 2);
        step.mutable_highway()->set_dtype(dtype);
        step.mutable_highway()->set_data(halves);
      }
      return step;
    };
    std::vector<v1::ForwardRequest> steps;
    const uint64_t slow = stack.Open();
    for (size_t t = 0; t < 256; ++t) steps.push_back(request(slow, story.Part(t, 1)));
    std::vector<float> one_by_one;
    for (const Answer& answer : stack.Stream(steps)) one_by_one = Join(one_by_one, answer.output());
    for (const char* label : {"", "x", "xy", "xyz"}) {
      // Unknown fields move the tensor by a byte each.
      std::string bytes = request(stack.Open(), story).SerializeAsString();
      bytes.insert(0, "\xa2\x01" + std::string(1, static_cast<char>(std::string(label).size())) + label);
      const RawResult result = StreamRaw(ChannelOf(stack), {bytes});
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      ASSERT_EQ(result.responses.size(), 1u);
      Answer answer;
      answer.response = result.responses[0];
      ASSERT_TRUE(answer.ok()) << answer.response.status().message();
      EXPECT_TRUE(SameBits(answer.output(), one_by_one)) << label;
    }
  }
}

}  // namespace
}  // namespace pleiad::testing
