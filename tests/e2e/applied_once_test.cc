// A step sent again after its connection died applies once, wherever the connection was cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cutting_proxy.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"

namespace pleiad::testing {
namespace {

constexpr char kAborted[] = "pleiad_forward_items_total{mode=\"forward\",code=\"ABORTED\"}";

// Where the connection dies, seen from the step.
enum class CutPoint : uint8_t {
  kBeforeSend,   // idle; the client finds out when it writes
  kRequestTorn,  // part of it reached the server
  kRequestLost,  // sent, and nothing of it reached the server
  kRequestLate,  // sent, and it reaches the server after the step that was sent again
  kAfterSend,    // it reached the server, which may be at work
  kReplyTorn,    // applied; part of the reply reached the client
  kReplyLost,    // applied; nothing of the reply reached the client
  kPoints
};

class AppliedOnceTest : public ::testing::Test {
 protected:
  AppliedOnceTest()
      : model_(Write()),
        server_(model_->path(),
                [](ServerFlags& flags) {
                  flags.batch_invariant = true;
                  flags.max_tokens = 64;
                }),
        proxy_(*model_ / "proxy", server_.socket_path()),
        direct_(server_.Connect()),
        cut_(InProcessServer::ConnectTo("unix:" + (*model_ / "proxy"))) {}

  static std::unique_ptr<TempDir> Write() {
    auto dir = std::make_unique<TempDir>();
    WriteCheckpoint({}, dir->path());
    return dir;
  }

  std::string State(const client::Sequence& sequence) {
    return VisibleState(server_.stub(), static_cast<uint64_t>(sequence.id()));
  }
  double Aborted() {
    const double count = MetricValue(ScrapeMetrics(server_.metrics_port()), kAborted);
    return count >= 0 ? count : 0;
  }

  const std::unique_ptr<TempDir> model_;
  InProcessServer server_;
  CuttingProxy proxy_;
  client::Client direct_;
  client::Client cut_;
};

TEST_F(AppliedOnceTest, AtFiftyCutsOutputsAndSnapshotsEqualAnUndisturbedRun) {
  std::mt19937 random(20);
  client::StreamOptions patient;
  patient.reconnect_timeout = absl::Minutes(5);
  const client::Sequence disturbed = *cut_.OpenSequence(), calm = *direct_.OpenSequence();
  const auto disturbed_stream = *cut_.OpenStream(patient), calm_stream = *direct_.OpenStream();

  const Passage first = RandomPassage(random, 12, direct_.model());
  ASSERT_EQ(RunPassage(*disturbed_stream, disturbed, first), RunPassage(*calm_stream, calm, first));

  for (int i = 0; i < 50; ++i) {
    const auto point = static_cast<CutPoint>(
        i < static_cast<int>(CutPoint::kPoints) ? i : static_cast<int>(random() % static_cast<int>(CutPoint::kPoints)));
    // One long step, or a few short ones of which several are in flight; at most 16 KiB each way.
    std::vector<uint32_t> lengths(1 + random() % 4);
    for (uint32_t& length : lengths) length = 1 + static_cast<uint32_t>(random() % (lengths.size() == 1 ? 32 : 4));
    uint32_t total = 0;
    for (uint32_t length : lengths) total += length;
    const Passage passage = RandomPassage(random, total, direct_.model());
    const uint64_t tensor = uint64_t{lengths[0]} * passage.channels * sizeof(float);
    const uint64_t torn_at = random() % tensor;
    SCOPED_TRACE(absl::StrCat("cut ", i, " at point ", static_cast<int>(point), ", first step of ", lengths[0],
                              " tokens, torn at byte ", torn_at));

    // The cut before may have come after the last reply: there is a connection to cut again.
    ASSERT_TRUE(disturbed_stream->Run(MoveOf(disturbed, disturbed.position(1))).ok());
    const uint64_t sent_before = proxy_.forwarded(Direction::kRequests);
    if (point == CutPoint::kBeforeSend) proxy_.Cut(CutSides::kBoth);
    if (point == CutPoint::kRequestTorn) proxy_.Hold(Direction::kRequests, torn_at);
    if (point == CutPoint::kRequestLost || point == CutPoint::kRequestLate) proxy_.Hold(Direction::kRequests, 0);
    if (point == CutPoint::kReplyTorn) proxy_.Hold(Direction::kReplies, torn_at);
    if (point == CutPoint::kReplyLost) proxy_.Hold(Direction::kReplies, 0);

    auto outputs =
        std::async(std::launch::async, [&] { return RunPassage(*disturbed_stream, disturbed, passage, lengths); });
    switch (point) {
      case CutPoint::kRequestTorn:
        EXPECT_TRUE(proxy_.AwaitHeld(Direction::kRequests, 1));
        break;
      case CutPoint::kRequestLost:
      case CutPoint::kRequestLate:
        EXPECT_TRUE(proxy_.AwaitHeld(Direction::kRequests, tensor));
        break;
      case CutPoint::kAfterSend:
        EXPECT_TRUE(proxy_.AwaitForwarded(Direction::kRequests, sent_before + tensor));
        break;
      case CutPoint::kReplyTorn:
        EXPECT_TRUE(proxy_.AwaitHeld(Direction::kReplies, 1));
        break;
      case CutPoint::kReplyLost:
        EXPECT_TRUE(proxy_.AwaitHeld(Direction::kReplies, tensor));
        break;
      default:
        break;
    }
    if (point != CutPoint::kBeforeSend) {
      proxy_.Cut(point == CutPoint::kRequestLate ? CutSides::kClientOnly : CutSides::kBoth);
    }
    const std::string seen = outputs.get();
    ASSERT_EQ(seen.size(), uint64_t{total} * passage.channels * sizeof(float));
    EXPECT_EQ(seen, RunPassage(*calm_stream, calm, passage, lengths));
    if (point == CutPoint::kRequestLate) {
      const double before = Aborted();
      proxy_.DeliverLate();
      EXPECT_TRUE(AwaitMetrics(server_.metrics_port(), [&](const std::string& page) {
        return MetricValue(page, kAborted) > before;
      })) << "the late copy is refused by its epoch";
    }
    ASSERT_EQ(State(disturbed).substr(State(disturbed).find(" at ")), State(calm).substr(State(calm).find(" at ")))
        << "history and conv rows";
    ASSERT_EQ(disturbed_stream->unanswered(), 0u);
  }
  // The comparison notices a step that applies twice.
  const Passage last = RandomPassage(random, 5, direct_.model());
  EXPECT_EQ(RunPassage(*disturbed_stream, disturbed, last), RunPassage(*calm_stream, calm, last));
  EXPECT_NE(RunPassage(*disturbed_stream, disturbed, last), RunPassage(*calm_stream, calm, first.Slice(0, 5)));
  EXPECT_NE(State(disturbed).substr(State(disturbed).find(" at ")), State(calm).substr(State(calm).find(" at ")));
}

// Steps on a stream of the generated stub, one at a time.
class RawStream {
 public:
  explicit RawStream(v1::Ple::Stub& stub) : stream_(stub.ForwardStream(&context_)) {}
  ~RawStream() {
    context_.TryCancel();
    v1::ForwardResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    (void)stream_->Finish();
  }
  v1::ForwardResponse Run(const v1::ForwardRequest& request) {
    v1::ForwardResponse response;
    EXPECT_TRUE(stream_->Write(request) && stream_->Read(&response));
    return response;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream_;
};

TEST_F(AppliedOnceTest, ALateCopyFromTheOldConnectionIsRefusedByItsEpoch) {
  std::mt19937 random(21);
  for (const uint32_t count : {1u, 7u, 8u, 9u, 40u}) {
    SCOPED_TRACE(absl::StrCat(count, " tokens"));
    const client::Sequence sequence = *direct_.OpenSequence(), calm = *direct_.OpenSequence();
    const Passage passage = RandomPassage(random, 12 + count, direct_.model());
    RawStream calm_stream(server_.stub());
    calm_stream.Run(RequestOf(static_cast<uint64_t>(calm.id()), passage.Slice(0, 12)));
    const auto wanted = calm_stream.Run(RequestOf(static_cast<uint64_t>(calm.id()), passage.Slice(12, count)));

    RawStream old_stream(server_.stub()), new_stream(server_.stub());
    v1::ForwardRequest step = RequestOf(static_cast<uint64_t>(sequence.id()), passage.Slice(0, 12), 0);
    step.set_epoch(1);
    ASSERT_EQ(old_stream.Run(step).status().code(), 0);
    v1::ForwardRequest late = RequestOf(static_cast<uint64_t>(sequence.id()), passage.Slice(12, count), 12);
    late.set_epoch(1);
    v1::ForwardRequest resent = late;
    resent.set_epoch(2);
    const v1::ForwardResponse answer = new_stream.Run(resent);
    ASSERT_EQ(answer.status().code(), 0) << answer.status().message();
    EXPECT_EQ(answer.output().data(), wanted.output().data());
    // Sent again once more, as after a lost reply.
    EXPECT_EQ(new_stream.Run(resent).output().data(), wanted.output().data());
    v1::ForwardRequest next = RequestOf(static_cast<uint64_t>(sequence.id()), passage.Slice(0, 1), 12 + count);
    next.set_epoch(2);
    ASSERT_EQ(new_stream.Run(next).status().code(), 0);
    const std::string before = State(sequence);

    const v1::ForwardResponse refused = old_stream.Run(late);
    EXPECT_EQ(refused.status().code(), static_cast<int>(grpc::StatusCode::ABORTED));
    ASSERT_EQ(refused.status().details_size(), 1);
    EXPECT_EQ(refused.status().details(0).reason(), v1::REASON_EPOCH_OLD);
    EXPECT_EQ(State(sequence), before);

    // Without an epoch it would act wherever its position can be had back.
    late.set_epoch(0);
    const bool acts = count + 1 <= direct_.model().rollback_tokens;
    EXPECT_EQ(old_stream.Run(late).status().code(), acts ? 0 : static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
    EXPECT_EQ(State(sequence) != before, acts);
  }
}

}  // namespace
}  // namespace pleiad::testing
