// A table that becomes unreadable while it serves: B09, B30, B34.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/cases/cached_stack.h"
#include "tests/support/process/child_process.h"

namespace pleiad::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Health = grpc::health::v1::HealthCheckResponse;

constexpr const char kQuarantined[] = "pleiad_staging_quarantined_rows";

class B09 : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Readers, B09, ::testing::Values("pread", "auto"),
                         [](const auto& reader) { return reader.param; });

TEST_P(B09, AFileTruncatedWhileServingFailsItsStepsByNameUntilItIsBack) {
  CachedStack cached(0, nullptr, GetParam());
  Stack& stack = cached.stack;
  const Story story = stack.RandomStory(60, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 20));
  const Where before = stack.At(sequence);

  std::vector<std::string> paths, contents;
  for (int file = 1; file <= 3; ++file) {
    paths.push_back(absl::StrCat(stack.model_dir(), "/model-0000", file, "-of-00003.safetensors"));
    contents.push_back(ReadFile(paths.back()));
    std::filesystem::resize_file(paths.back(), 512);
  }
  for (int round = 0; round < 3; ++round) {
    const Answer answer = stack.Forward(stack.Request(sequence, story.Part(20, 40), 20));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS) << answer.status.error_message();
    EXPECT_EQ(answer.reason(), v1::REASON_TABLE_UNREADABLE);
    EXPECT_THAT(answer.detail.ShortDebugString(), HasSubstr(".safetensors at byte "));
    EXPECT_EQ(stack.At(sequence), before);
  }
  cached.AwaitHealth(Health::NOT_SERVING);
  EXPECT_GE(stack.Metric("pleiad_row_read_errors_total"), 3);

  for (size_t file = 0; file < paths.size(); ++file) WriteFile(paths[file], contents[file]);
  cached.clock.Advance(absl::Seconds(1));
  cached.AwaitHealth(Health::SERVING);
  output = Join(output, stack.Step(sequence, story.Part(20, 40), 20));
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
}

TEST(B30, AReadErrorFailsItsStepAndTheNextOneWorks) {
  std::atomic<ReadFault> fault{ReadFault::kNone};
  CachedStack cached(8, [&fault](const RowRead&, size_t) { return fault.exchange(ReadFault::kNone); });
  Stack& stack = cached.stack;
  const Story story = stack.RandomStory(24, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 6));
  const Where before = stack.At(sequence);
  fault = ReadFault::kError;
  const Answer answer = stack.Forward(stack.Request(sequence, story.Part(6, 18), 6));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.reason(), v1::REASON_TABLE_UNREADABLE);
  EXPECT_EQ(stack.At(sequence), before);
  output = Join(output, stack.Step(sequence, story.Part(6, 18), 6));
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
  cached.AwaitQuiet();
}

TEST(B30, AReadThatNeverEndsFailsItsStepAtTheReadTimeoutAndHoldsUpNobodyElse) {
  std::atomic<ReadFault> fault{ReadFault::kNone};
  CachedStack cached(0, [&fault](const RowRead&, size_t) { return fault.exchange(ReadFault::kNone); });
  Stack& stack = cached.stack;
  const Story story = stack.RandomStory(24, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open(), other = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 6));
  const Where before = stack.At(sequence);
  fault = ReadFault::kNever;
  Pending<Answer> stuck([&] { return stack.Forward(stack.Request(sequence, story.Part(6, 1), 6)); });
  cached.reader->AwaitHeld(1);
  // Rows of its own; none joins the stuck one.
  const Story apart = stack.MakeStory({cached.TokenApartFrom({cached.RowsOf(story.tokens).at(6)})}, 3);
  EXPECT_TRUE(SameBits(stack.Step(other, apart), stack.FreshRun(apart).output));
  cached.clock.Advance(absl::Seconds(5));
  const Answer answer = stuck.Get();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("--read-timeout"));
  EXPECT_EQ(answer.reason(), v1::REASON_TABLE_UNREADABLE);
  EXPECT_EQ(stack.At(sequence), before);
  EXPECT_EQ(stack.Metric(kQuarantined), 1);
  output = Join(output, stack.Step(sequence, story.Part(6, 18), 6));
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
  EXPECT_EQ(stack.Metric(kQuarantined), 1);
  cached.AwaitQuiet();
}

TEST(B30, WithOneThreadRowsAreFetchedWhileAStepWaitsForItsOwn) {
  std::atomic<ReadFault> fault{ReadFault::kHold};
  CachedStack cached(
      8, [&fault](const RowRead&, size_t) { return fault.load(); }, "pread", 1);
  Stack& stack = cached.stack;
  const uint64_t sequence = stack.Open();
  Pending<Answer> waiting([&] { return stack.Forward(stack.Request(sequence, stack.MakeStory({11}, 1))); });
  cached.reader->AwaitHeld(4);
  fault = ReadFault::kNone;
  EXPECT_EQ(stack.Ids({cached.TokenApartFrom(cached.RowsOf({11}))}).at(0).size(), 4u);
  cached.reader->Release(ScriptedReader::Order::kSubmitted);
  EXPECT_TRUE(waiting.Get().ok());
}

// A read of the kernel's that nothing can end, as of a disk that is gone: the reader cannot be destroyed either.
TEST(B34, AStepStuckInAReadDoesNotHoldUpTheStop) {
  TempDir dir;
  WriteCheckpoint(Labelled(DType::kBf16), dir.path());
  ChildProcess server({PLEIAD_STUCK_SERVER, dir.path()});
  const std::optional<std::string> address = server.ReadOutputLine();
  ASSERT_TRUE(address.has_value()) << server.DrainError();
  const auto stub = v1::Ple::NewStub(grpc::CreateChannel(*address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto stream = stub->ForwardStream(&context);
  v1::ForwardRequest request;
  request.add_segments()->set_num_tokens(1);
  request.add_token_ids(11);
  request.mutable_highway()->set_zeros(true);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_EQ(server.ReadOutputLine(), "stuck");
  server.Signal(SIGTERM);
  v1::ForwardResponse response;
  if (stream->Read(&response)) {
    EXPECT_EQ(response.status().code(), static_cast<int>(grpc::StatusCode::UNAVAILABLE));
    EXPECT_FALSE(stream->Read(&response));
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  const std::string log = server.DrainError();
  EXPECT_EQ(server.Wait(), 4) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("stopping takes longer"), HasSubstr("giving up")));
}

}  // namespace
}  // namespace pleiad::testing
