// Rule by rule: a refusal says why, and nothing moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/refusal_rows.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_clock.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// One server for all rows; a cast of sequences for each.
class RefusalsTest : public ::testing::TestWithParam<Refusal> {
 protected:
  static void SetUpTestSuite() {
    model_ = new TempDir;
    clock_ = new FakeClock;
    WriteCheckpoint(TwoLayerSpec(), model_->path());
    server_ = new InProcessServer(
        model_->path(),
        [](ServerFlags& flags) {
          flags.batch_invariant = true;
          flags.max_tokens = kRefusalMaxTokens;
          flags.max_sequences = 4;
        },
        clock_);
  }
  static void TearDownTestSuite() {
    delete server_;
    delete clock_;
    delete model_;
  }

  RefusalsTest() : random_(60), client_(server_->Connect()) {
    cast_.model = &client_.model();
    cast_.stub = &server_->stub();
    for (uint64_t* id : {&cast_.apart, &cast_.level, &cast_.failed, &control_}) *id = Open();
    const Passage passage = RandomPassage(random_, 60, client_.model());
    // Both copies alike.
    for (const uint64_t id : {cast_.apart, control_}) {
      Good(RequestOf(id, passage.Slice(0, 12), std::nullopt, 1));
      v1::ForwardRequest second = RequestOf(id, passage.Slice(12, 5), std::nullopt, 1);
      second.set_epoch(5);
      Good(second);
      Good(RequestOf(id, passage.Slice(17, 20), std::nullopt, 3));
    }
    for (const uint32_t layer : {1u, 3u}) {
      Good(RequestOf(cast_.level, passage.Slice(40, 3), std::nullopt, layer));
      Good(RequestOf(cast_.failed, passage.Slice(44, 4), std::nullopt, layer));
      v1::ForwardRequest bad = RequestOf(cast_.failed, passage.Slice(44, 4), 100, layer);
      EXPECT_NE(Unary(bad).code, 0);
    }
    cast_.released = control_ ^ 1;  // never opened
  }
  ~RefusalsTest() override {
    for (const uint64_t id : {cast_.apart, cast_.level, cast_.failed, control_}) {
      grpc::ClientContext context;
      v1::ReleaseRequest request;
      request.set_sequence_id(id);
      v1::ReleaseResponse response;
      EXPECT_TRUE(server_->stub().Release(&context, request, &response).ok());
      EXPECT_TRUE(response.released());
    }
  }

  uint64_t Open() {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    const grpc::Status status = server_->stub().OpenSequence(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.sequence_id();
  }
  Reply Unary(const v1::ForwardRequest& request, v1::ForwardResponse* response = nullptr) {
    v1::ForwardResponse ignored;
    return CallOf(server_->stub(), &v1::Ple::Stub::Forward, request, response != nullptr ? response : &ignored);
  }
  v1::ForwardResponse Good(const v1::ForwardRequest& request) {
    v1::ForwardResponse response;
    const Reply reply = Unary(request, &response);
    EXPECT_EQ(reply.code, 0) << reply.status.message();
    return response;
  }
  // Everything a client can see of all sequences.
  std::string World() {
    std::string world;
    for (const uint64_t id : {cast_.apart, cast_.level, cast_.failed, control_}) {
      grpc::ClientContext context;
      v1::GetSequenceRequest request;
      request.set_sequence_id(id);
      v1::GetSequenceResponse response;
      EXPECT_TRUE(server_->stub().GetSequence(&context, request, &response).ok());
      world += response.ShortDebugString() + "\n" + VisibleState(server_->stub(), id);
    }
    return world;
  }
  void ExpectRefusal(const Reply& reply) {
    const Refusal& row = GetParam();
    EXPECT_EQ(reply.code, row.code);
    EXPECT_EQ(reply.status.code(), row.code);
    EXPECT_FALSE(reply.status.message().empty());
    ASSERT_EQ(reply.status.details_size(), row.details) << reply.status.ShortDebugString();
    const v1::ErrorDetail& detail = reply.status.details(0);
    EXPECT_EQ(detail.reason(), row.reason) << reply.status.ShortDebugString();
    EXPECT_EQ(detail.field(), row.field);
    EXPECT_THAT(detail.value(), HasSubstr(row.value));
    EXPECT_THAT(detail.limit(), HasSubstr(row.limit));
    EXPECT_EQ(detail.has_segment(), row.segment.has_value());
    if (row.segment) {
      EXPECT_EQ(detail.segment(), *row.segment);
    }
    if (row.reason == v1::REASON_POSITION_UNREACHABLE || row.reason == v1::REASON_PREDECESSOR_FAILED) {
      EXPECT_TRUE(detail.has_position() && detail.has_low());
    }
  }

  static inline TempDir* model_;
  static inline FakeClock* clock_;
  static inline InProcessServer* server_;
  std::mt19937 random_;
  client::Client client_;
  Cast cast_;
  uint64_t control_ = 0;
};

TEST_P(RefusalsTest, SaysWhyAndMovesNothing) {
  const std::string before = World();
  if (GetParam().step) {
    const v1::ForwardRequest request = GetParam().step(cast_);
    ExpectRefusal(Unary(request));
    EXPECT_EQ(World(), before) << "unary";
    ExpectRefusal(OnStream(server_->stub(), request));
  } else {
    ExpectRefusal(GetParam().call(cast_));
  }
  EXPECT_EQ(World(), before);

  // The next good step is what it would have been.
  const Passage next = RandomPassage(random_, 7, client_.model());
  for (const auto& [layer, position] : {std::pair{1u, 17u}, {3u, 20u}}) {
    const v1::ForwardResponse got = Good(RequestOf(cast_.apart, next, position, layer));
    const v1::ForwardResponse want = Good(RequestOf(control_, next, position, layer));
    EXPECT_EQ(got.output().data(), want.output().data());
  }
  EXPECT_EQ(VisibleState(server_->stub(), cast_.apart), VisibleState(server_->stub(), control_));
  EXPECT_NE(World(), before) << "a step shows";
}

INSTANTIATE_TEST_SUITE_P(Rules, RefusalsTest, ::testing::ValuesIn(RefusalRows()),
                         [](const auto& chosen) { return chosen.param.name; });

}  // namespace
}  // namespace pleiad::testing
