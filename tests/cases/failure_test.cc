// Refusals, rows that never come, and clients that vanish: B20, B22, B30.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/cases/held_rows.h"
#include "tests/cases/stack.h"
#include "tests/support/fake_clock.h"
#include "tests/support/process/child_process.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// A stack whose rows can be held and whose time stands still.
struct HeldStack {
  FakeClock clock;
  std::shared_ptr<HeldRows> rows = std::make_shared<HeldRows>();
  Stack stack;

  explicit HeldStack(ServerFlags flags = CaseFlags())
      : stack({.flags = std::move(flags), .clock = &clock, .wrap_rows = [this](std::unique_ptr<RowStore> inner) {
                 return rows->Wrap(std::move(inner));
               }}) {}
};

// A unary Forward on a thread of its own.
class PendingForward {
 public:
  PendingForward(Stack& stack, v1::ForwardRequest request)
      : thread_([this, &stack, request = std::move(request)] { answer_ = stack.Forward(request); }) {}
  Answer Get() {
    thread_.join();
    return std::move(answer_);
  }

 private:
  Answer answer_;
  std::thread thread_;
};

TEST(B20, RefusalsLeaveTheSequenceAsItWas) {
  ServerFlags flags = CaseFlags();
  flags.max_tokens = 32;
  HeldStack held(flags);
  Stack& stack = held.stack;
  const Story story = stack.RandomStory(24, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 20));
  const Where before = stack.At(sequence);

  const Answer many = stack.Forward(stack.Request(sequence, stack.RandomStory(33, 2)));
  EXPECT_EQ(many.reason(), v1::REASON_TOO_MANY_TOKENS);
  EXPECT_EQ(stack.At(sequence), before);

  v1::ForwardRequest misshapen = stack.Request(sequence, story.Part(20, 4), 20);
  misshapen.mutable_highway()->mutable_data()->resize(12);
  EXPECT_EQ(stack.Forward(misshapen).reason(), v1::REASON_SIZE_MISMATCH);
  EXPECT_EQ(stack.At(sequence), before);

  held.rows->HoldNext();
  v1::ForwardRequest late = stack.Request(sequence, story.Part(20, 4), 20);
  late.set_timeout_ms(50);
  PendingForward expired(stack, late);
  held.rows->AwaitHeld(1);
  held.clock.Advance(absl::Milliseconds(51));
  EXPECT_EQ(expired.Get().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(stack.At(sequence), before);
  EXPECT_EQ(held.rows->held(), 0u) << "its rows are let go";

  // After a failed step a position is asked for.
  EXPECT_EQ(stack.Forward(stack.Request(sequence, story.Part(20, 4))).reason(), v1::REASON_PREDECESSOR_FAILED);
  output = Join(output, stack.Step(sequence, story.Part(20, 4), 20));
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
}

// A stream whose answers are read one at a time, whichever comes first.
class OpenStream {
 public:
  explicit OpenStream(Stack& stack) : stream_(stack.stub().ForwardStream(&context_)) {}
  void Write(v1::ForwardRequest request, uint64_t request_id) {
    request.set_request_id(request_id);
    EXPECT_TRUE(stream_->Write(request));
  }
  v1::ForwardResponse Read() {
    v1::ForwardResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  grpc::Status Finish() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream_;
};

TEST(B20, AStepWhoseTimePassesInTheQueueLeavesTheSequenceAsItWas) {
  HeldStack held;
  Stack& stack = held.stack;
  const Story story = stack.RandomStory(12, 1);
  const Stack::Whole first = stack.FreshRun(story.Part(0, 6)), control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open(), other = stack.Open();
  OpenStream stream(stack);
  held.rows->HoldNext();
  stream.Write(stack.Request(sequence, story.Part(0, 6)), 1);
  held.rows->AwaitHeld(1);
  v1::ForwardRequest hurried = stack.Request(sequence, story.Part(6, 6));
  hurried.set_timeout_ms(50);
  stream.Write(hurried, 2);
  // A stream is read in order: once this one is answered, the hurried step is in its queue.
  stream.Write(stack.Request(other, story.Part(0, 6)), 3);
  v1::ForwardResponse response = stream.Read();
  EXPECT_EQ(response.request_id(), 3u);
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  held.clock.Advance(absl::Milliseconds(51));
  held.rows->Release();
  response = stream.Read();
  EXPECT_EQ(response.request_id(), 1u);
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  response = stream.Read();
  EXPECT_EQ(response.request_id(), 2u);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::DEADLINE_EXCEEDED) << response.status().message();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stack.At(sequence), first.end);

  // A failed step: the next one must say where it stands.
  EXPECT_EQ(stack.Forward(stack.Request(sequence, story.Part(6, 6))).reason(), v1::REASON_PREDECESSOR_FAILED);
  EXPECT_EQ(stack.At(sequence), first.end);
  EXPECT_TRUE(SameBits(Join(first.output, stack.Step(sequence, story.Part(6, 6), 6)), control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
}

// A finished call gives its room back only once gRPC has sent its answer, so a client may be there before.
template <typename Call>
auto WhenThereIsRoom(Call call) {
  for (;;) {
    auto result = call();
    if (result.status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return result;
  }
}

Answer ForwardWhenThereIsRoom(Stack& stack, const v1::ForwardRequest& request) {
  return WhenThereIsRoom([&] { return stack.Forward(request); });
}

uint64_t OpenWhenThereIsRoom(Stack& stack) {
  struct Opened {
    grpc::Status status;
    uint64_t sequence = 0;
  };
  return WhenThereIsRoom([&] {
           Opened opened;
           opened.status = stack.Open({}, &opened.sequence);
           return opened;
         })
      .sequence;
}

TEST(B20, ARefusalForWantOfRoomLeavesTheSequenceAsItWas) {
  Stack unbounded;
  const Story story = unbounded.RandomStory(24, 1);
  const Stack::Whole control = unbounded.FreshRun(story);

  ServerFlags flags = CaseFlags();
  flags.max_inflight_requests = 1;
  HeldStack held(flags);
  Stack& stack = held.stack;
  const uint64_t sequence = OpenWhenThereIsRoom(stack), other = OpenWhenThereIsRoom(stack);
  std::vector<float> output = ForwardWhenThereIsRoom(stack, stack.Request(sequence, story.Part(0, 20), 0)).output();
  held.rows->HoldNext();
  Answer waited;
  std::thread waiting([&] { waited = ForwardWhenThereIsRoom(stack, stack.Request(other, story.Part(0, 2), 0)); });
  held.rows->AwaitHeld(1);
  const Answer full = stack.Forward(stack.Request(sequence, story.Part(20, 4), 20));
  EXPECT_EQ(full.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(full.reason(), v1::REASON_TOO_MANY_IN_FLIGHT);
  EXPECT_EQ(stack.Get(sequence).layers(0).position(), 20u);
  held.rows->Release();
  waiting.join();
  EXPECT_TRUE(waited.ok()) << waited.status.error_message();
  output = Join(output, ForwardWhenThereIsRoom(stack, stack.Request(sequence, story.Part(20, 4), 20)).output());
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.Get(sequence).layers(0).position(), 24u);
}

TEST(B30, RowsThatNeverComeFailTheirStepInTimeAndTheNextOneWorks) {
  HeldStack held;
  Stack& stack = held.stack;
  const Story story = stack.RandomStory(12, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open(), other = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 6));
  const Where before = stack.At(sequence);
  held.rows->HoldNext();
  v1::ForwardRequest request = stack.Request(sequence, story.Part(6, 6), 6);
  request.set_timeout_ms(1000);
  PendingForward stuck(stack, request);
  held.rows->AwaitHeld(1);
  // Nobody else waits for it.
  EXPECT_TRUE(SameBits(stack.Step(other, story), control.output));
  held.clock.Advance(absl::Milliseconds(1001));
  const Answer answer = stuck.Get();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(stack.At(sequence), before);
  output = Join(output, stack.Step(sequence, story.Part(6, 6), 6));
  EXPECT_TRUE(SameBits(output, control.output));
  EXPECT_EQ(stack.At(sequence), control.end);
}

TEST(B30, AnUnreadableRowFailsItsStepByNameAndTheNextOneWorks) {
  HeldStack held;
  Stack& stack = held.stack;
  const Story story = stack.RandomStory(12, 1);
  const Stack::Whole control = stack.FreshRun(story);
  const uint64_t sequence = stack.Open();
  std::vector<float> output = stack.Step(sequence, story.Part(0, 6));
  const Where before = stack.At(sequence);
  held.rows->FailNext(absl::DataLossError("unreadable"), {.id_index = 5, .file = "table-3", .offset = 4096});
  const Answer answer = stack.Forward(stack.Request(sequence, story.Part(6, 6), 6));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.reason(), v1::REASON_TABLE_UNREADABLE);
  EXPECT_THAT(answer.detail.ShortDebugString(), HasSubstr("table-3"));
  EXPECT_THAT(answer.detail.ShortDebugString(), HasSubstr("4096"));
  EXPECT_EQ(stack.At(sequence), before);
  output = Join(output, stack.Step(sequence, story.Part(6, 6), 6));
  EXPECT_TRUE(SameBits(output, control.output));
}

// Counts lines of the log.
class CountingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::atomic<uint64_t> lines{0};

 protected:
  void sink_it_(const spdlog::details::log_msg&) override { ++lines; }
  void flush_() override {}
};

size_t BytesInUse() { return ::mallinfo2().uordblks; }

TEST(B22, SequencesOfKilledClientsAreGivenBackAndUsedOnesAreNot) {
  constexpr uint32_t kMany = 10'000, kFew = 1'000;
  FakeClock clock;
  StackOptions options;
  options.flags.max_sequences = kMany + 1;
  options.flags.sequence_ttl = absl::Minutes(10);
  options.clock = &clock;
  Stack stack(options);
  const auto log = std::make_shared<CountingSink>();
  spdlog::default_logger()->sinks().push_back(log);
  const uint64_t used = stack.Open();
  const Story story = stack.RandomStory(40, 1);
  std::vector<size_t> bytes;
  for (uint32_t round = 0; round < 20; ++round) {
    const uint32_t count = round == 0 ? kMany : kFew;
    ChildProcess client({PLEIAD_ABANDONING_CLIENT, stack.address(), absl::StrCat(count)});
    ASSERT_EQ(client.ReadOutputLine(), "opened") << client.DrainError();
    EXPECT_EQ(stack.Metric("pleiad_sequences"), count + 1);
    if (count == kMany) {
      uint64_t none = 0;
      EXPECT_EQ(stack.Open({}, &none).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
    client.Signal(SIGKILL);
    EXPECT_EQ(client.Wait(), -SIGKILL);
    EXPECT_EQ(stack.Metric("pleiad_sequences"), count + 1) << "before its time";
    const uint64_t lines = log->lines;
    stack.Step(used, story.Part(2 * round, 1));
    clock.Advance(absl::Minutes(9));
    stack.Step(used, story.Part(2 * round + 1, 1));
    clock.Advance(absl::Minutes(2));
    while (stack.Metric("pleiad_sequences") > 1) std::this_thread::yield();
    EXPECT_LE(log->lines - lines, count);
    bytes.push_back(BytesInUse());
  }
  spdlog::default_logger()->sinks().pop_back();
  EXPECT_EQ(stack.Get(used).layers(0).position(), 40u);
  // Zero where the allocator does not count. The first rounds fill what the process keeps; the later ones leak nothing
  // that grows with their thousand sequences.
  EXPECT_LE(bytes[19], bytes[10] + 9 * kFew * 16);
}

}  // namespace
}  // namespace pleiad::testing
