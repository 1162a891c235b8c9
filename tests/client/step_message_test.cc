// Against the generated classes: what they write and read is the reference.
#include "client/internal/step_message.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/convert.h"

namespace pleiad::client::internal {
namespace {

using Random = std::mt19937;

uint32_t Below(Random& random, uint32_t limit) { return static_cast<uint32_t>(random() % limit); }
// Of any length as a varint; often 0.
uint64_t AnyNumber(Random& random, uint32_t bits) {
  if (Below(random, 4) == 0) return 0;
  return (uint64_t{random()} << 32 | random()) >> (64 - bits + Below(random, bits));
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

grpc::ByteBuffer Cut(const std::string& bytes, size_t at) {
  const grpc::Slice slices[] = {grpc::Slice(bytes.data(), at), grpc::Slice(bytes.data() + at, bytes.size() - at)};
  return grpc::ByteBuffer(slices, 2);
}

RegionSpan AnySpan(Random& random) { return {AnyNumber(random, 64), AnyNumber(random, 64), AnyNumber(random, 40)}; }

WireStep AnyStep(Random& random, const std::string& tensor) {
  WireStep step;
  step.request_id = AnyNumber(random, 64);
  step.epoch = AnyNumber(random, 20);
  step.mode = Below(random, 4) == 0 ? StepMode::kPrestage : StepMode::kForward;
  if (Below(random, 2) != 0) step.layer_index = Below(random, 3);
  for (uint32_t i = Below(random, 5); i > 0; --i) {
    WireSegment& segment = step.segments.emplace_back();
    segment.sequence = SequenceId{AnyNumber(random, 64)};
    segment.num_tokens = static_cast<uint32_t>(AnyNumber(random, 32));
    segment.fresh = Below(random, 2) != 0;
    if (Below(random, 2) != 0) segment.position = AnyNumber(random, 63);
  }
  for (uint32_t i = Below(random, 9); i > 0; --i) {
    step.token_ids.push_back(static_cast<uint32_t>(AnyNumber(random, 32)));
  }
  step.highway.dtype = Below(random, 2) != 0 ? DType::kF32 : DType::kBf16;
  switch (Below(random, 4)) {
    case 0:
      step.highway.zeros = true;
      break;
    case 1:
      step.highway.region = AnySpan(random);
      break;
    case 2:
      step.highway.data = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(tensor.data()), tensor.size());
      break;
    default:
      break;
  }
  step.output_kind = Below(random, 2) != 0 ? OutputKind::kHighway : OutputKind::kDelta;
  if (Below(random, 2) != 0) step.output_dtype = Below(random, 2) != 0 ? DType::kF32 : DType::kBf16;
  if (Below(random, 2) != 0) step.output_region = AnySpan(random);
  if (Below(random, 2) != 0) step.token_region = AnySpan(random);
  step.timeout_ms = static_cast<uint32_t>(AnyNumber(random, 32));
  for (uint32_t i = Below(random, 4); i > 0; --i) step.release_after.push_back(SequenceId{AnyNumber(random, 64)});
  return step;
}

TEST(SerializeStep, WritesTheBytesOfTheGeneratedClass) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::string tensor(Below(random, 300), 't');
    const WireStep step = AnyStep(random, tensor);
    v1::ForwardRequest expected;
    ToWire(step, &expected);
    ASSERT_EQ(Bytes(SerializeStep(step)), expected.SerializeAsString()) << expected.ShortDebugString();
  }
}

TEST(SerializeStep, RefersToAHighwayWithAnOwner) {
  const auto owner = std::make_shared<const std::string>(1 << 16, 'x');
  WireStep step;
  step.highway.data = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(owner->data()), owner->size());
  step.highway.owner = owner;
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(SerializeStep(step).Dump(&slices).ok());
  EXPECT_EQ(slices.back().begin(), reinterpret_cast<const uint8_t*>(owner->data()));
}

v1::ForwardResponse AnyAnswer(Random& random) {
  v1::ForwardResponse answer;
  answer.set_request_id(AnyNumber(random, 63));
  if (Below(random, 8) != 0) answer.mutable_status();
  for (uint32_t i = Below(random, 5); i > 0; --i) {
    v1::SegmentResult* segment = answer.add_segments();
    segment->set_sequence_id(AnyNumber(random, 64));
    segment->set_position(AnyNumber(random, 63));
    segment->set_low(AnyNumber(random, 63));
  }
  if (Below(random, 8) != 0) {
    v1::StepStats* stats = answer.mutable_stats();
    stats->set_rows(AnyNumber(random, 50));
    stats->set_hits(AnyNumber(random, 50));
    stats->set_misses(AnyNumber(random, 50));
    stats->set_joins(AnyNumber(random, 50));
    stats->set_batch_tokens(static_cast<uint32_t>(AnyNumber(random, 32)));
    stats->set_queue_us(AnyNumber(random, 40));
    stats->set_resolve_us(AnyNumber(random, 40));
    stats->set_device_us(AnyNumber(random, 40));
  }
  answer.set_draining(Below(random, 2) != 0);
  if (Below(random, 2) != 0) {
    answer.mutable_output()->set_dtype(static_cast<v1::DType>(Below(random, 3)));
    answer.mutable_output()->mutable_region()->set_region_id(AnyNumber(random, 64));
    answer.mutable_output()->mutable_region()->set_offset(AnyNumber(random, 60));
    answer.mutable_output()->mutable_region()->set_bytes(AnyNumber(random, 60));
  }
  return answer;
}

std::string Describe(const WireReply& reply) {
  if (!reply.result.ok()) return reply.result.status().ToString();
  const StepResult& result = *reply.result;
  std::string text = absl::StrCat(reply.request_id, " dtype ", static_cast<int>(result.output_dtype), " bytes ",
                                  result.output.size(), " draining ", result.draining);
  for (const SegmentResult& segment : result.segments) {
    absl::StrAppend(&text, " [", static_cast<uint64_t>(segment.sequence), " ", segment.position, " ", segment.low, "]");
  }
  const StepStats& stats = result.stats;
  absl::StrAppend(&text, " ", stats.rows, " ", stats.hits, " ", stats.misses, " ", stats.joins, " ", stats.batch_tokens,
                  " ", absl::FormatDuration(stats.queue), " ", absl::FormatDuration(stats.resolve), " ",
                  absl::FormatDuration(stats.device));
  return text;
}

// Whether it is read; then as the generated class and ToReply do.
bool ReadsAsGenerated(const std::string& bytes, size_t cut) {
  const std::optional<WireReply> reply = ReadPlainReply(Cut(bytes, cut));
  if (!reply.has_value()) return false;
  v1::ForwardResponse expected;
  EXPECT_TRUE(expected.ParseFromString(bytes));
  EXPECT_EQ(Describe(*reply), Describe(ToReply(&expected))) << testing::PrintToString(bytes);
  return true;
}

TEST(ReadPlainReply, ReadsWhatServersSendAsTheGeneratedClassDoes) {
  Random random(2);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = AnyAnswer(random).SerializeAsString();
    ASSERT_TRUE(ReadsAsGenerated(bytes, Below(random, static_cast<uint32_t>(bytes.size()) + 1)));
  }
}

TEST(ReadPlainReply, OfEveryLengthAndOfBrokenBytesItReadsNothingElse) {
  Random random(3);
  int read = 0, left = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string whole = AnyAnswer(random).SerializeAsString();
    for (size_t size = 0; size <= whole.size(); ++size) {
      (ReadsAsGenerated(whole.substr(0, size), size / 2) ? read : left) += 1;
    }
    for (int change = 0; change < 40 && !whole.empty(); ++change) {
      std::string bytes = whole;
      bytes[Below(random, static_cast<uint32_t>(bytes.size()))] = static_cast<char>(random());
      (ReadsAsGenerated(bytes, bytes.size() / 2) ? read : left) += 1;
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(read, 10000);
  EXPECT_GT(left, 10000);
}

TEST(ReadPlainReply, LeavesFailuresTensorsAndFieldsThatComeTwiceToOthers) {
  v1::ForwardResponse failed, tensor, zeros, stats;
  failed.mutable_status()->set_code(3);
  tensor.mutable_output()->set_data("01234567");
  zeros.mutable_output()->set_zeros(true);
  stats.mutable_stats()->set_rows(1);
  for (const v1::ForwardResponse& message : {failed, tensor, zeros}) {
    EXPECT_FALSE(ReadsAsGenerated(message.SerializeAsString(), 1)) << message.ShortDebugString();
  }
  EXPECT_TRUE(ReadsAsGenerated(stats.SerializeAsString(), 1));
  EXPECT_FALSE(ReadsAsGenerated(stats.SerializeAsString() + stats.SerializeAsString(), 1));
  EXPECT_FALSE(ReadsAsGenerated("\x30\x01", 1)) << "field 6";
  EXPECT_FALSE(ReadPlainReply(grpc::ByteBuffer()).has_value());
}

}  // namespace
}  // namespace pleiad::client::internal
