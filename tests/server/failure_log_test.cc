#include "server/failure_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/log.h"
#include "spdlog/sinks/ostream_sink.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_clock.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTrace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// What is logged while it lives.
class Lines {
 public:
  explicit Lines(spdlog::level::level_enum level) : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_));
    logger->set_pattern("%l %v");
    logger->set_level(level);
    spdlog::set_default_logger(std::move(logger));
  }
  ~Lines() { spdlog::set_default_logger(before_); }
  // Of the threads that have ended what they log.
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  const std::shared_ptr<spdlog::logger> before_;
};

Outcome Unreadable() {
  return Failed(absl::StatusCode::kDataLoss, "row 77",
                MakeDetail(Reason::kTableUnreadable, "row", "/srv/model.safetensors at byte 512"));
}

TEST(TraceParent, IsThatOfTheStandard) {
  EXPECT_TRUE(IsTraceParent(kTrace));
  const std::string good = kTrace;
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "0", good + "-00", "ff" + good.substr(2), "0g" + good.substr(2),
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n")}) {
    EXPECT_FALSE(IsTraceParent(bad)) << bad;
  }
  EXPECT_TRUE(IsTraceParent("01" + good.substr(2) + "-more")) << "a later version";
  EXPECT_FALSE(IsTraceParent("01" + good.substr(2) + "more"));
}

TEST(FailureLog, NamesTheLabelAndTheTraceAndNothingThatCallersSent) {
  const Lines lines(spdlog::level::debug);
  uint64_t sequence = 0;
  {
    TestServer server;
    {
      grpc::ClientContext context;
      v1::OpenSequenceRequest request;
      request.set_label("chat \"7\"\n");
      v1::OpenSequenceResponse response;
      ASSERT_TRUE(server.stub().OpenSequence(&context, request, &response).ok());
      sequence = response.sequence_id();
    }
    {
      grpc::ClientContext context;
      context.AddMetadata("traceparent", kTrace);
      v1::ForwardRequest request = Step(1, sequence);
      request.set_token_ids(0, 987654321);
      v1::ForwardResponse response;
      server.engine().FailNext(
          Failed(absl::StatusCode::kInvalidArgument, "token 987654321",
                 MakeDetail(Reason::kTokenOutOfVocabulary, "token_ids[0]", "987654321", "below 512", /*segment=*/0)));
      ASSERT_EQ(server.stub().Forward(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
    {
      grpc::ClientContext context;
      context.AddMetadata("traceparent", "no trace");
      auto stream = server.stub().ForwardStream(&context);
      v1::ForwardResponse response;
      server.engine().FailNext(Unreadable());
      ASSERT_TRUE(stream->Write(Step(1, sequence)) && stream->Read(&response));
      stream->WritesDone();
      ASSERT_TRUE(stream->Finish().ok());
    }
    server.server().Terminate();
    server.server().Terminate();
    server.Wait();
  }
  EXPECT_THAT(lines.text(), HasSubstr(absl::StrCat("debug Forward failed: INVALID_ARGUMENT, TOKEN_OUT_OF_VOCABULARY "
                                                   "token_ids[0], label \"chat \\\"7\\\"\\n\", traceparent ",
                                                   kTrace, "\n")));
  EXPECT_THAT(lines.text(), HasSubstr("warning ForwardStream step failed: DATA_LOSS, TABLE_UNREADABLE row "
                                      "/srv/model.safetensors at byte 512, label \"chat \\\"7\\\"\\n\"\n"));
  EXPECT_THAT(lines.text(), Not(HasSubstr("987654321")));
}

class FailureLines : public ::testing::Test {
 protected:
  void Fail(const Outcome& outcome, uint64_t sequence = 0) { log_.Failed("Forward", outcome, context_, sequence); }

  FakeClock clock_;
  FailureLog log_{2, &clock_};
  grpc::CallbackServerContext context_;
};

TEST_F(FailureLines, WarningsAreBoundedAndTheRestIsCounted) {
  const Lines lines(spdlog::level::info);
  for (int i = 0; i < FailureLog::kWarnings + 5; ++i) Fail(Unreadable());
  Fail(Failed(absl::StatusCode::kNotFound, "", UnknownSequence()));
  const std::string first = lines.text();
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), FailureLog::kWarnings);
  clock_.Advance(absl::Seconds(1));
  Fail(Unreadable());
  EXPECT_THAT(lines.text().substr(first.size()),
              HasSubstr("warning 5 more requests failed and are not named here\nwarning Forward failed: DATA_LOSS"));
}

TEST_F(FailureLines, LabelsOfTheLastSequencesAreKept) {
  const Lines lines(spdlog::level::info);
  for (uint64_t sequence : {1, 2, 3}) log_.Named(sequence, absl::StrCat("label ", sequence));
  log_.Named(4, "");
  log_.Released(2);
  for (uint64_t sequence : {1, 2, 3, 4}) Fail(Unreadable(), sequence);
  EXPECT_THAT(lines.text(), HasSubstr("label \"label 3\""));
  for (const char* gone : {"label 1", "label 2", "label \"\""}) EXPECT_THAT(lines.text(), Not(HasSubstr(gone)));
}

}  // namespace
}  // namespace pleiad
