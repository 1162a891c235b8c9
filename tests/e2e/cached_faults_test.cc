// Unreadable rows, as clients see them: the step that needs them fails by name, nothing moves, others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_clock.h"
#include "tests/support/rows/scripted_reader.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;
using Health = grpc::health::v1::HealthCheckResponse;

class CachedFaults : public ::testing::Test {
 protected:
  CachedFaults() {
    WriteCheckpoint({}, dir_.path());
    CacheParts parts;
    parts.wrap_reader = [this](std::unique_ptr<RowReader> inner) {
      auto reader = std::make_unique<ScriptedReader>(std::move(inner), [this](const RowRead& read, size_t) {
        last_ = read.offset;
        if (read.offset == broken_at_) return ReadFault::kError;
        const ReadFault fault = fault_;
        if (once_.exchange(false)) fault_ = ReadFault::kNone;
        return fault;
      });
      reader_ = reader.get();
      return reader;
    };
    server_ = std::make_unique<InProcessServer>(
        dir_.path(),
        [](ServerFlags& flags) {
          flags.table = TableFlag::kCached;
          flags.cache_bytes = 0;
          flags.batch_invariant = true;
        },
        &clock_, std::move(parts));
    client_ = std::make_unique<client::Client>(server_->Connect());
  }

  // The next read, and that alone.
  void FailNext(ReadFault fault) {
    once_ = true;
    fault_ = fault;
  }
  struct Called {
    grpc::Status status;
    v1::Status detail;
    v1::ForwardResponse response;
  };
  Called Forward(const v1::ForwardRequest& request) {
    Called called;
    grpc::ClientContext context;
    called.status = server_->stub().Forward(&context, request, &called.response);
    const auto& metadata = context.GetServerTrailingMetadata();
    if (const auto found = metadata.find("pleiad-status-bin"); found != metadata.end()) {
      EXPECT_TRUE(called.detail.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())));
    }
    return called;
  }
  uint64_t Open() {
    grpc::ClientContext context;
    v1::OpenSequenceResponse response;
    EXPECT_TRUE(server_->stub().OpenSequence(&context, {}, &response).ok());
    return response.sequence_id();
  }
  std::string State(uint64_t sequence) { return VisibleState(server_->stub(), sequence); }
  Passage Random(uint32_t seed, uint32_t count) {
    std::mt19937 random(seed);
    return RandomPassage(random, count, client_->model());
  }
  std::vector<uint64_t> Rows(const Passage& passage) {
    client::LookupQuery query;
    query.segments.push_back({passage.size(), {}});
    query.token_ids = passage.tokens;
    return client_->Lookup(query)->row_ids;
  }
  bool SharesRows(const Passage& a, const Passage& b) {
    const std::vector<uint64_t> of_a = Rows(a), of_b = Rows(b);
    return std::any_of(of_a.begin(), of_a.end(),
                       [&](uint64_t row) { return std::find(of_b.begin(), of_b.end(), row) != of_b.end(); });
  }
  void AwaitHealth(int wanted) {
    for (const char* name : {"", "pleiad.v1.Ple"}) {
      while (server_->HealthOf(name) != wanted) std::this_thread::yield();
    }
  }
  double Metric(const std::string& name) { return MetricValue(ScrapeMetrics(server_->metrics_port()), name); }

  TempDir dir_;
  FakeClock clock_;
  std::atomic<ReadFault> fault_{ReadFault::kNone};
  std::atomic<bool> once_{false};
  std::atomic<uint64_t> last_{0}, broken_at_{0};
  ScriptedReader* reader_ = nullptr;
  std::unique_ptr<InProcessServer> server_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(CachedFaults, AnUnreadableRowFailsItsRequestByNameAndNothingMoves) {
  const uint64_t first = Open(), second = Open();
  const Passage passage = Random(1, 24);
  ASSERT_TRUE(Forward(RequestOf(first, passage.Slice(0, 8))).status.ok());
  ASSERT_TRUE(Forward(RequestOf(second, passage.Slice(0, 8))).status.ok());
  const std::string first_was = State(first), second_was = State(second);

  v1::ForwardRequest both = RequestOf(first, passage.Slice(8, 4), 8);
  const v1::ForwardRequest other = RequestOf(second, Random(2, 4), 8);
  *both.add_segments() = other.segments(0);
  both.mutable_token_ids()->MergeFrom(other.token_ids());
  both.mutable_highway()->mutable_data()->append(other.highway().data());
  FailNext(ReadFault::kError);
  const Called called = Forward(both);
  EXPECT_EQ(called.status.error_code(), grpc::StatusCode::DATA_LOSS);
  ASSERT_EQ(called.detail.details_size(), 1) << called.detail.ShortDebugString();
  const v1::ErrorDetail& detail = called.detail.details(0);
  EXPECT_EQ(detail.reason(), v1::REASON_TABLE_UNREADABLE);
  EXPECT_THAT(detail.value(), HasSubstr(dir_.path() + "/model-0000"));
  EXPECT_THAT(detail.value(), HasSubstr(".safetensors at byte "));
  EXPECT_LT(detail.segment(), 2u);
  EXPECT_EQ(State(first), first_was);
  EXPECT_EQ(State(second), second_was);

  const Called again = Forward(both);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.segments(0).position(), 12u);
  EXPECT_EQ(again.response.segments(1).position(), 12u);
  EXPECT_EQ(server_->HealthOf(""), Health::SERVING) << "one failure";
}

TEST_F(CachedFaults, TheSegmentThatNeedsTheRowIsNamed) {
  // The rows of a throw-away carry's tokens; each segment alone, to learn where its first row lies.
  const Passage tokens = Random(3, 2);
  std::vector<uint64_t> offsets;
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Forward(RequestOf(0, tokens.Slice(i, 1))).status.ok());
    offsets.push_back(last_);
  }
  ASSERT_NE(offsets[0], offsets[1]);
  for (uint32_t bad = 0; bad < 2; ++bad) {
    v1::ForwardRequest both = RequestOf(0, tokens);
    both.mutable_segments(0)->set_num_tokens(1);
    *both.add_segments() = both.segments(0);
    broken_at_ = offsets[bad];
    const Called called = Forward(both);
    broken_at_ = 0;
    EXPECT_EQ(called.status.error_code(), grpc::StatusCode::DATA_LOSS);
    ASSERT_EQ(called.detail.details_size(), 1) << called.detail.ShortDebugString();
    EXPECT_EQ(called.detail.details(0).segment(), bad);
    EXPECT_THAT(called.detail.details(0).value(), HasSubstr(absl::StrCat("at byte ", offsets[bad])));
  }
}

TEST_F(CachedFaults, ThreeFailedReadsInARowTurnHealthAndAProbeTurnsItBack) {
  const uint64_t sequence = Open();
  const Passage passage = Random(4, 1);
  EXPECT_EQ(server_->HealthOf(""), Health::SERVING);
  fault_ = ReadFault::kError;
  EXPECT_FALSE(Forward(RequestOf(sequence, passage, 0)).status.ok());  // four rows
  AwaitHealth(Health::NOT_SERVING);
  EXPECT_EQ(server_->HealthOf("pleiad.live"), Health::SERVING);
  EXPECT_EQ(Metric("pleiad_ready"), 0);
  const size_t before = reader_->submitted();
  clock_.Advance(absl::Seconds(1));
  while (reader_->submitted() == before) std::this_thread::yield();  // a probe, which fails
  EXPECT_EQ(server_->HealthOf(""), Health::NOT_SERVING);
  fault_ = ReadFault::kNone;
  clock_.Advance(absl::Seconds(1));
  AwaitHealth(Health::SERVING);
  EXPECT_TRUE(Forward(RequestOf(sequence, passage, 0)).status.ok());
}

TEST_F(CachedFaults, AReadThatNeverEndsTimesOutIsQuarantinedAndOthersGoOn) {
  const uint64_t stuck_sequence = Open(), other = Open();
  const Passage passage = Random(5, 1), apart = Random(6, 20);
  const std::string before = State(stuck_sequence);
  fault_ = ReadFault::kNever;
  once_ = true;
  std::future<Called> stuck =
      std::async(std::launch::async, [&] { return Forward(RequestOf(stuck_sequence, passage, 0)); });
  reader_->AwaitHeld(1);
  // Tokens whose rows are not the stuck one; the first that shares it would wait.
  uint32_t went_on = 0;
  for (uint32_t i = 0; i < apart.size() && went_on < 3; ++i) {
    if (SharesRows(passage, apart.Slice(i, 1))) continue;
    EXPECT_TRUE(Forward(RequestOf(0, apart.Slice(i, 1))).status.ok());
    ++went_on;
  }
  EXPECT_EQ(went_on, 3u);
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(Metric("pleiad_row_reads_in_flight"), 1) << "not yet";
  clock_.Advance(absl::Seconds(1));
  const Called called = stuck.get();
  EXPECT_EQ(called.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(called.status.error_message(), HasSubstr("--read-timeout"));
  EXPECT_EQ(State(stuck_sequence), before);
  EXPECT_EQ(Metric("pleiad_staging_quarantined_rows"), 1);
  EXPECT_EQ(Metric("pleiad_row_reads_in_flight"), 0);
  EXPECT_TRUE(Forward(RequestOf(stuck_sequence, passage, 0)).status.ok());
  EXPECT_TRUE(Forward(RequestOf(other, apart, 0)).status.ok());
}

}  // namespace
}  // namespace pleiad::testing
