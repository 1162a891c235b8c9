#include "server/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "proto/wire/forward_message.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

ServiceLimits TestLimits() {
  ServerFlags flags;
  flags.max_tokens = 16;
  return ComputeLimits(flags, 8).value();
}

v1::ForwardRequest GoodRequest() {
  v1::ForwardRequest request;
  request.set_epoch(9);
  request.set_layer_index(1);
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(5);
  segment->set_num_tokens(2);
  segment->set_position(0);
  request.add_token_ids(11);
  request.add_token_ids(22);
  request.mutable_highway()->set_dtype(v1::DTYPE_BF16);
  request.mutable_highway()->set_data(std::string(2 * 8 * 2, 'x'));
  request.mutable_output()->set_kind(v1::OUTPUT_KIND_DELTA);
  request.set_timeout_ms(250);
  request.add_release_after(6);
  return request;
}

// A request as it is received; its tensor in two pieces where it has data enough.
struct Received {
  explicit Received(const v1::ForwardRequest& sent) {
    const std::string bytes = sent.SerializeAsString();
    const size_t cut = bytes.size() - std::min<size_t>(bytes.size(), 5);
    const grpc::Slice slices[] = {grpc::Slice(bytes.data(), cut), grpc::Slice(bytes.data() + cut, bytes.size() - cut)};
    grpc::ByteBuffer buffer(slices, 2);
    message_bytes = bytes.size();
    EXPECT_TRUE(ParseForwardMessage(&buffer, &request, &tensor));
  }
  StepRequest Step(const ServiceLimits& limits = TestLimits()) const {
    return ToStepRequest(request, tensor, message_bytes, limits);
  }

  v1::ForwardRequest request;
  TensorBytes tensor;
  uint64_t message_bytes;
};

Reason RefusedFor(const v1::ForwardRequest& request) {
  const Received received(request);
  const StepRequest step = received.Step();
  if (!step.refused) return Reason::kUnspecified;
  EXPECT_EQ(step.refused->code, absl::StatusCode::kInvalidArgument);
  return step.refused->details.at(0).reason;
}

TEST(ToStepRequest, CarriesEveryFieldAndDoesNotCopyTheTensor) {
  const Received received((GoodRequest()));
  const StepRequest step = received.Step();
  EXPECT_FALSE(step.refused.has_value());
  EXPECT_EQ(step.epoch, 9u);
  EXPECT_EQ(step.layer, LayerIndex(1));
  ASSERT_EQ(step.segments.size(), 1u);
  EXPECT_EQ(step.segments[0].sequence, SequenceId(5));
  EXPECT_EQ(step.segments[0].position, Position(0));
  EXPECT_EQ(step.token_ids, (std::vector<uint32_t>{11, 22}));
  EXPECT_EQ(step.input.source, StepInput::Source::kData);
  EXPECT_EQ(step.input.dtype, DType::kBf16);
  EXPECT_EQ(step.input.data, nullptr);
  ASSERT_EQ(step.input.pieces.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(step.input.pieces[i].data, received.tensor.pieces()[i].data());
  EXPECT_EQ(step.input.pieces[1].offset, step.input.pieces[0].bytes);
  EXPECT_EQ(step.input.bytes, 32u);
  EXPECT_EQ(step.output.kind, OutputKind::kDelta);
  EXPECT_FALSE(step.output.dtype.has_value());
  EXPECT_EQ(step.timeout, absl::Milliseconds(250));
  EXPECT_EQ(step.release_after, std::vector<SequenceId>{SequenceId(6)});
}

TEST(ToStepRequest, AbsentStaysAbsent) {
  v1::ForwardRequest request;
  request.add_segments()->set_sequence_id(5);
  const StepRequest step = Received(request).Step();
  EXPECT_FALSE(step.layer.has_value());
  EXPECT_FALSE(step.segments[0].position.has_value());
  EXPECT_EQ(step.input.source, StepInput::Source::kAbsent);
  EXPECT_FALSE(step.input.dtype.has_value());
  EXPECT_EQ(step.timeout, absl::InfiniteDuration());
  request.mutable_highway()->set_zeros(true);
  EXPECT_EQ(Received(request).Step().input.source, StepInput::Source::kZeros);
}

TEST(ToStepRequest, UnknownEnumValuesAreRefused) {
  v1::ForwardRequest request = GoodRequest();
  request.set_mode(static_cast<v1::Mode>(2));
  EXPECT_EQ(RefusedFor(request), Reason::kInvalidField);
  request = GoodRequest();
  request.mutable_output()->set_kind(static_cast<v1::OutputKind>(2));
  EXPECT_EQ(RefusedFor(request), Reason::kInvalidField);
  request = GoodRequest();
  request.mutable_output()->set_dtype(static_cast<v1::DType>(3));
  EXPECT_EQ(RefusedFor(request), Reason::kInvalidField);
  request = GoodRequest();
  request.mutable_highway()->set_dtype(static_cast<v1::DType>(-1));
  EXPECT_EQ(RefusedFor(request), Reason::kInvalidField);
  EXPECT_EQ(RefusedFor(GoodRequest()), Reason::kUnspecified);
}

TEST(ToStepRequest, AMessageAboveTheLimitIsRefusedByName) {
  const ServiceLimits limits = TestLimits();
  v1::ForwardRequest request = GoodRequest();
  request.mutable_highway()->set_data(std::string(limits.max_message_bytes, 'x'));
  EXPECT_EQ(RefusedFor(request), Reason::kSizeMismatch);
  EXPECT_THAT(Received(request).Step(limits).refused->message, HasSubstr("--max-tokens"));
  request.mutable_segments(0)->set_num_tokens(17);
  EXPECT_EQ(RefusedFor(request), Reason::kTooManyTokens);
  EXPECT_THAT(Received(request).Step(limits).refused->message, HasSubstr("--max-tokens"));
}

TEST(OutputBytes, CountsWhatTheStepWillReturn) {
  v1::ForwardRequest request = GoodRequest();
  EXPECT_EQ(OutputBytes(request, TestLimits()), 2u * 8 * 2) << "as the input";
  request.mutable_output()->set_dtype(v1::DTYPE_F32);
  EXPECT_EQ(OutputBytes(request, TestLimits()), 2u * 8 * 4);
  request.set_mode(v1::MODE_PRESTAGE);
  EXPECT_EQ(OutputBytes(request, TestLimits()), 0u);
  request.set_mode(v1::MODE_FORWARD);
  request.mutable_segments(0)->set_num_tokens(0xFFFFFFFF);
  EXPECT_EQ(OutputBytes(request, TestLimits()), 0u) << "will be refused";
}

TEST(FillResponse, SumsRowsAndGivesMicroseconds) {
  StepResult result;
  result.segments = {{SequenceId(5), Position(7), Position(3)}};
  result.stats.rows = {.hits = 1, .misses = 2, .joins = 4};
  result.stats.queue = absl::Milliseconds(2);
  v1::ForwardResponse response;
  FillResponse(result, response);
  EXPECT_TRUE(response.has_status());
  EXPECT_EQ(response.status().code(), 0);
  EXPECT_EQ(response.segments(0).position(), 7u);
  EXPECT_EQ(response.segments(0).low(), 3u);
  EXPECT_EQ(response.stats().rows(), 7u);
  EXPECT_EQ(response.stats().queue_us(), 2000u);
}

TEST(Reasons, HaveTheNumbersOfTheWire) {
  EXPECT_EQ(static_cast<int>(Reason::kNotSupported), v1::REASON_NOT_SUPPORTED);
  EXPECT_EQ(static_cast<int>(Reason::kPredecessorFailed), v1::REASON_PREDECESSOR_FAILED);
  EXPECT_EQ(static_cast<int>(Reason::kNotSupported), v1::Reason_MAX);
}

TEST(StatusMetadata, KeepsTheFieldsAndFitsGrpcHeaders) {
  Outcome outcome{.code = absl::StatusCode::kFailedPrecondition, .message = std::string(5000, 'm'), .details = {}};
  // Going over them all again and again would take minutes.
  for (uint32_t i = 0; i < 400'000; ++i) {
    ErrorDetail detail;
    detail.reason = Reason::kPositionUnreachable;
    detail.segment = i;
    detail.position = Position(30);
    detail.low = Position(22);
    outcome.details.push_back(detail);
  }
  EXPECT_LE(ToGrpcStatus(outcome).error_message().size(), 1024u);
  const std::string bytes = ToStatusMetadata(outcome);
  EXPECT_LE(bytes.size(), 4096u);
  v1::Status status;
  ASSERT_TRUE(status.ParseFromString(bytes));
  EXPECT_EQ(status.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.details(0).reason(), v1::REASON_POSITION_UNREACHABLE);
  EXPECT_EQ(status.details(0).low(), 22u);
  EXPECT_EQ(status.details(1).segment(), 1u);
}

TEST(StatusMetadata, WhatTheClientSentIsCutBetweenCharacters) {
  std::string long_text = "x";
  for (int i = 0; i < 3000; ++i) long_text += "\u00e9";
  ErrorDetail detail;
  detail.reason = Reason::kModelMismatch;
  detail.field = "model_id";
  detail.value = long_text;
  const Outcome outcome{.code = absl::StatusCode::kInvalidArgument, .message = long_text, .details = {detail}};
  const std::string bytes = ToStatusMetadata(outcome);
  EXPECT_LE(bytes.size(), 3072u);
  v1::Status status;
  ASSERT_TRUE(status.ParseFromString(bytes)) << "not UTF-8";
  EXPECT_EQ(status.details(0).reason(), v1::REASON_MODEL_MISMATCH);
  EXPECT_EQ(status.details(0).value(), long_text.substr(0, 255));
  EXPECT_EQ(ToGrpcStatus(outcome).error_message(), long_text.substr(0, 1023));
}

TEST(LayerAux, GoesThereAndBack) {
  v1::RestoreRequest request;
  v1::LayerAux* layer = request.add_layers();
  layer->set_layer_index(3);
  layer->set_position(12);
  layer->set_crc32(77);
  layer->set_aux("bytes");
  v1::SnapshotResponse response;
  FillLayerAux(ToCarryBlobs(request.layers()), *response.mutable_layers());
  EXPECT_EQ(response.layers(0).SerializeAsString(), layer->SerializeAsString());
}

TEST(Checks, LabelsAndKeysHaveAtMost64Bytes) {
  v1::OpenSequenceRequest request;
  request.set_label(std::string(64, 'l'));
  request.set_client_key(std::string(64, 'k'));
  EXPECT_FALSE(Check(request).has_value());
  request.set_label(std::string(65, 'l'));
  EXPECT_THAT(Check(request)->message, HasSubstr("label"));
  request.clear_label();
  request.set_client_key(std::string(65, 'k'));
  const auto bad = Check(request);
  EXPECT_THAT(bad->message, HasSubstr("client_key"));
  EXPECT_EQ(bad->message.find("kkkk"), std::string::npos) << "a key is a secret";
}

}  // namespace
}  // namespace pleiad
