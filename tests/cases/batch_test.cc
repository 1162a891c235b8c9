// Sequences that run beside each other, and requests that must harm nobody else: B11, B12, B31, B36, B39.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/cases/stack.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// One request of many segments.
v1::ForwardRequest Together(const Stack& stack, const std::vector<uint64_t>& sequences,
                            const std::vector<Story>& stories) {
  v1::ForwardRequest all = stack.Request(sequences[0], stories[0]);
  for (size_t i = 1; i < sequences.size(); ++i) {
    const v1::ForwardRequest one = stack.Request(sequences[i], stories[i]);
    *all.add_segments() = one.segments(0);
    all.mutable_token_ids()->MergeFrom(one.token_ids());
    all.mutable_highway()->mutable_data()->append(one.highway().data());
  }
  return all;
}

// The output of each segment.
std::vector<std::vector<float>> Cut(const std::vector<float>& output, const std::vector<Story>& stories) {
  std::vector<std::vector<float>> parts;
  auto from = output.begin();
  for (const Story& story : stories) {
    const auto to = from + static_cast<ptrdiff_t>(story.highway.size());
    parts.emplace_back(from, to);
    from = to;
  }
  EXPECT_EQ(from, output.end());
  return parts;
}

TEST(B11, EachSequenceOfABatchIsHashedFromItsOwnHistory) {
  Stack stack;
  const std::vector<uint32_t> backwards(kToyTokens.rbegin(), kToyTokens.rend());
  const std::vector<Story> forth = {stack.MakeStory(kToyTokens, 1), stack.MakeStory(backwards, 2)};
  const std::vector<Story> back = {forth[1], forth[0]};
  EXPECT_EQ(stack.Ids(kToyTokens), kToyIds);
  EXPECT_NE(stack.Ids(backwards), kToyIds);
  for (const std::vector<Story>& stories : {forth, back}) {
    const std::vector<uint64_t> sequences = {stack.Open(), stack.Open()};
    // A first half in one batch, so that histories differ; then the rest.
    const std::vector<Story> heads = {stories[0].Part(0, 3), stories[1].Part(0, 3)};
    const std::vector<Story> tails = {stories[0].Part(3, 4), stories[1].Part(3, 4)};
    const Answer first = stack.Forward(Together(stack, sequences, heads));
    const Answer second = stack.Forward(Together(stack, sequences, tails));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(second.response.stats().batch_tokens(), 8u);
    for (size_t i = 0; i < 2; ++i) {
      const Stack::Whole solo = stack.FreshRun(stories[i]);
      EXPECT_TRUE(SameBits(Join(Cut(first.output(), heads)[i], Cut(second.output(), tails)[i]), solo.output));
      EXPECT_EQ(stack.At(sequences[i]), solo.end);
      // The other's history would have been seen.
      EXPECT_NE(stack.Parse(solo.end.aux).history, stack.Parse(stack.FreshRun(stories[1 - i]).end.aux).history);
    }
  }
}

TEST(B11, ManyConcurrentStreamsEqualTheirSoloRuns) {
  Stack stack;
  for (const size_t streams : {8, 63}) {
    std::vector<Story> stories;
    std::vector<Stack::Whole> solo;
    for (size_t i = 0; i < streams; ++i) {
      stories.push_back(stack.RandomStory(5 + 3 * i % 29, 100 + i));
      solo.push_back(stack.FreshRun(stories[i]));
    }
    std::vector<uint64_t> sequences;
    for (size_t i = 0; i < streams; ++i) sequences.push_back(stack.Open());
    std::vector<std::vector<float>> outputs(streams);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < streams; ++i) {
      threads.emplace_back([&, i] {
        std::vector<v1::ForwardRequest> requests;
        for (size_t at = 0; at < stories[i].tokens.size();) {
          const size_t count = std::min(stories[i].tokens.size() - at, 1 + (at + i) % 4);
          requests.push_back(stack.Request(sequences[i], stories[i].Part(at, count)));
          at += count;
        }
        for (const Answer& answer : stack.Stream(requests)) outputs[i] = Join(outputs[i], answer.output());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < streams; ++i) {
      EXPECT_TRUE(SameBits(outputs[i], solo[i].output)) << "stream " << i;
      EXPECT_EQ(stack.At(sequences[i]), solo[i].end) << "stream " << i;
      stack.Release(sequences[i]);
    }
  }
}

TEST(B12, ARaggedBatchEqualsSoloRunsAndAsksForItsOwnRowsAlone) {
  Stack stack;
  const std::vector<Story> stories = {stack.RandomStory(1, 1), stack.RandomStory(7, 2), stack.RandomStory(3, 3),
                                      stack.RandomStory(0, 4)};
  std::vector<Stack::Whole> solo;
  for (size_t i = 0; i < 3; ++i) solo.push_back(stack.FreshRun(stories[i]));
  std::vector<uint64_t> sequences;
  for (size_t i = 0; i < 4; ++i) sequences.push_back(stack.Open());
  // The empty one has a history to lose.
  const Story earlier = stack.RandomStory(5, 9);
  stack.Step(sequences[3], earlier);
  const Where before = stack.At(sequences[3]);

  const std::string counter = "pleiad_row_lookups_total{layer=\"1\",result=\"hit\"}";
  const double rows = stack.Metric(counter);
  const Answer answer = stack.Forward(Together(stack, sequences, stories));
  ASSERT_TRUE(answer.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.response.stats().rows(), (1u + 7 + 3) * 4);
  EXPECT_EQ(stack.Metric(counter) - rows, (1 + 7 + 3) * 4);
  const std::vector<std::vector<float>> outputs = Cut(answer.output(), stories);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(outputs[i], solo[i].output));
    EXPECT_EQ(stack.At(sequences[i]), solo[i].end);
  }
  EXPECT_EQ(stack.At(sequences[3]), before);
}

// The released width: a token is 40,960 bytes.
StackOptions Wide() {
  StackOptions options;
  options.spec.geometry = {.hidden_size = 2560, .hc_count = 4, .embed_dim = 32, .ngram_size = 3, .heads_per_ngram = 2};
  options.flags.max_tokens = 512;
  options.flags.max_sequences = 4;
  return options;
}

TEST(B31, DefaultClientsRead102TokensAndMoreWithTheLimitOfGetModel) {
  Stack stack(Wide());
  const Story story = stack.RandomStory(512, 1);
  EXPECT_EQ(story.channels() * sizeof(float), 40960u);
  const uint64_t sequence = stack.Open();
  ASSERT_TRUE(stack.Forward(stack.Request(sequence, story.Part(0, 102), 0)).ok());
  const Answer refused = stack.Forward(stack.Request(sequence, story.Part(0, 103), 0));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("4194304"));

  grpc::ClientContext model_context;
  v1::GetModelResponse model;
  ASSERT_TRUE(stack.stub().GetModel(&model_context, {}, &model).ok());
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(model.limits().max_message_bytes()));
  const auto stub =
      v1::Ple::NewStub(grpc::CreateCustomChannel(stack.address(), grpc::InsecureChannelCredentials(), arguments));
  for (const size_t tokens : {103, 512}) {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    const grpc::Status status = stub->Forward(&context, stack.Request(sequence, story.Part(0, tokens), 0), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.output().data().size(), tokens * 40960);
  }
}

TEST(B31, AMessageAboveTheServersLimitHarmsNobody) {
  StackOptions options = Wide();
  options.flags.max_tokens = 16;
  Stack stack(options);
  const uint64_t sequence = stack.Open(), other = stack.Open();
  const Story story = stack.RandomStory(64, 1);
  stack.Step(sequence, story.Part(0, 8));
  const Where before = stack.At(sequence);
  const Story few = story.Part(0, 4);
  const std::vector<float> expected = stack.FreshRun(few).output;

  grpc::ClientContext context;
  auto stream = stack.stub().ForwardStream(&context);
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Write(stack.Request(other, few.Part(0, 2))));
  ASSERT_TRUE(stream->Read(&response));
  std::vector<float> got = Answer{.status = {}, .detail = {}, .response = response}.output();

  // Past max_tokens: refused by the rule. Past twice the largest message: ended by gRPC.
  const Answer many = stack.Forward(stack.Request(sequence, story.Part(0, 17), 8));
  EXPECT_EQ(many.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(many.reason(), v1::REASON_TOO_MANY_TOKENS);
  EXPECT_THAT(many.status.error_message(), HasSubstr("--max-tokens"));
  EXPECT_EQ(stack.Forward(stack.Request(sequence, story.Part(0, 40), 8)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(stack.At(sequence), before);

  ASSERT_TRUE(stream->Write(stack.Request(other, few.Part(2, 2))));
  ASSERT_TRUE(stream->Read(&response));
  got = Join(got, Answer{.status = {}, .detail = {}, .response = response}.output());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(SameBits(got, expected));
}

struct Malformed {
  std::string name;
  std::function<void(v1::ForwardRequest&)> change;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
};

// A good request of two tokens, broken one way each.
std::vector<Malformed> MalformedRequests() {
  const auto segment = [](v1::ForwardRequest& r) -> v1::Segment& { return *r.mutable_segments(0); };
  const auto data = [](v1::ForwardRequest& r) { return r.mutable_highway()->mutable_data(); };
  return {
      {"no tokens counted", [=](v1::ForwardRequest& r) { segment(r).set_num_tokens(0); }},
      {"one token counted", [=](v1::ForwardRequest& r) { segment(r).set_num_tokens(1); }},
      {"2^31 tokens counted", [=](v1::ForwardRequest& r) { segment(r).set_num_tokens(1u << 31); }},
      {"-1 tokens counted", [=](v1::ForwardRequest& r) { segment(r).set_num_tokens(~0u); }},
      {"counts whose 32-bit sum is right",
       [=](v1::ForwardRequest& r) {
         segment(r).set_num_tokens(1u << 31);
         r.add_segments()->set_num_tokens((1u << 31) + 2);
       }},
      {"one id too many", [](v1::ForwardRequest& r) { r.add_token_ids(1); }},
      {"no ids", [](v1::ForwardRequest& r) { r.clear_token_ids(); }},
      {"bytes not a multiple of 4", [=](v1::ForwardRequest& r) { data(r)->pop_back(); }},
      {"one float too few", [=](v1::ForwardRequest& r) { data(r)->resize(data(r)->size() - 4); }},
      {"one row too many", [=](v1::ForwardRequest& r) { data(r)->resize(data(r)->size() / 2 * 3); }},
      {"empty data", [=](v1::ForwardRequest& r) { data(r)->clear(); }},
      {"no tensor", [](v1::ForwardRequest& r) { r.clear_highway(); }},
      {"a tensor without a source", [](v1::ForwardRequest& r) { r.mutable_highway()->clear_data(); }},
      {"F32 data called BF16", [](v1::ForwardRequest& r) { r.mutable_highway()->set_dtype(v1::DTYPE_BF16); }},
      {"no dtype", [](v1::ForwardRequest& r) { r.mutable_highway()->set_dtype(v1::DTYPE_UNSPECIFIED); }},
      {"an unknown dtype", [](v1::ForwardRequest& r) { r.mutable_highway()->set_dtype(static_cast<v1::DType>(77)); }},
      {"an unknown output dtype",
       [](v1::ForwardRequest& r) { r.mutable_output()->set_dtype(static_cast<v1::DType>(-1)); }},
      {"an unknown output kind",
       [](v1::ForwardRequest& r) { r.mutable_output()->set_kind(static_cast<v1::OutputKind>(9)); }},
      {"an unknown mode", [](v1::ForwardRequest& r) { r.set_mode(static_cast<v1::Mode>(9)); }},
      {"a region", [](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_bytes(~0ull); }},
      {"a layer without PLE", [](v1::ForwardRequest& r) { r.set_layer_index(~0u); }},
      {"the sequence twice", [=](v1::ForwardRequest& r) { *r.add_segments() = segment(r); }},
      {"fresh at a position",
       [=](v1::ForwardRequest& r) {
         segment(r).set_fresh(true);
         segment(r).set_position(3);
       }},
      {"a position out of reach", [=](v1::ForwardRequest& r) { segment(r).set_position(~0ull); },
       grpc::StatusCode::FAILED_PRECONDITION},
      {"an unknown sequence", [=](v1::ForwardRequest& r) { segment(r).set_sequence_id(~segment(r).sequence_id()); },
       grpc::StatusCode::NOT_FOUND},
  };
}

TEST(B36, AMalformedRequestIsRefusedAndLeavesNoTrace) {
  Stack stack;
  const uint64_t sequence = stack.Open();
  const Story story = stack.RandomStory(12, 1);
  const Stack::Whole whole = stack.FreshRun(story);
  std::vector<float> got = stack.Step(sequence, story.Part(0, 6));
  const Where before = stack.At(sequence);
  for (const Malformed& bad : MalformedRequests()) {
    v1::ForwardRequest request = stack.Request(sequence, story.Part(6, 2), 6);
    bad.change(request);
    const Answer answer = stack.Forward(request);
    EXPECT_EQ(answer.status.error_code(), bad.code) << bad.name << ": " << answer.status.error_message();
    EXPECT_GT(answer.detail.details_size(), 0) << bad.name;
    EXPECT_EQ(stack.At(sequence), before) << bad.name;
  }
  got = Join(got, stack.Step(sequence, story.Part(6, 6), 6));
  EXPECT_TRUE(SameBits(got, whole.output));
  EXPECT_EQ(stack.At(sequence), whole.end);
}

TEST(B36, AGoodRequestBesideMalformedOnesEqualsItsSoloRun) {
  Stack stack;
  const uint64_t good = stack.Open(), victim = stack.Open();
  const Story story = stack.RandomStory(60, 2);
  const Stack::Whole whole = stack.FreshRun(story);
  const std::vector<Malformed> malformed = MalformedRequests();
  std::vector<v1::ForwardRequest> requests;
  for (size_t i = 0; i < malformed.size(); ++i) {
    requests.push_back(stack.Request(good, story.Part(2 * i, 2)));
    v1::ForwardRequest bad = stack.Request(victim, story.Part(0, 2), 0);
    malformed[i].change(bad);
    requests.push_back(bad);
  }
  requests.push_back(stack.Request(good, story.Part(2 * malformed.size(), 60 - 2 * malformed.size())));
  const std::vector<Answer> answers = stack.Stream(requests);
  std::vector<float> got;
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].ok(), i % 2 == 0) << malformed[i / 2].name;
    got = Join(got, answers[i].output());
  }
  EXPECT_TRUE(SameBits(got, whole.output));
  EXPECT_EQ(stack.At(good), whole.end);
  EXPECT_EQ(stack.At(victim).position, 0u);
}

TEST(B36, EmptyMessagesAndNamesOfAMegabyte) {
  StackOptions options;
  options.flags.max_tokens = 4096;  // so that gRPC lets a megabyte in
  Stack stack(options);
  EXPECT_TRUE(stack.Forward({}).ok()) << "no segments: nothing to do";
  uint64_t sequence = 0;
  v1::OpenSequenceRequest open;
  open.set_label(std::string(1 << 20, 'x'));
  EXPECT_EQ(stack.Open(open, &sequence).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  open.clear_label();
  open.set_client_key(std::string(1 << 20, 'x'));
  EXPECT_EQ(stack.Open(open, &sequence).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stack.Metric("pleiad_sequences"), 0);
  v1::SnapshotRequest snapshot;  // sequence_id 0
  v1::SnapshotResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stack.stub().Snapshot(&context, snapshot, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// The policy: IEEE arithmetic, and only the sequence that sent them sees them.
TEST(B36, NanAndInfinityPoisonTheirOwnSequenceAlone) {
  Stack stack;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<Story> stories = {stack.RandomStory(4, 1), stack.RandomStory(4, 2)};
    const Stack::Whole solo = stack.FreshRun(stories[1]);
    std::fill(stories[0].highway.begin(), stories[0].highway.end(), value);
    const std::vector<uint64_t> sequences = {stack.Open(), stack.Open()};
    const Answer answer = stack.Forward(Together(stack, sequences, stories));
    ASSERT_TRUE(answer.ok()) << answer.status.error_message();
    const std::vector<std::vector<float>> outputs = Cut(answer.output(), stories);
    EXPECT_TRUE(std::any_of(outputs[0].begin(), outputs[0].end(), [](float v) { return std::isnan(v); }));
    EXPECT_TRUE(SameBits(outputs[1], solo.output));
    EXPECT_EQ(stack.At(sequences[1]), solo.end);
  }
}

// The schedule of the case, on the CPU: decode, prefill of other sequences, decode again, parked sequences beside.
TEST(B39, DecodePrefillDecodeEqualsSoloRunsAndParkedSequencesSleep) {
  Stack stack;
  std::vector<uint64_t> decoding, parked;
  std::vector<Story> stories;
  std::vector<Where> sleeping;
  for (size_t i = 0; i < 32; ++i) {
    decoding.push_back(stack.Open());
    stories.push_back(stack.RandomStory(6, 50 + i));
  }
  for (size_t i = 0; i < 4; ++i) {
    parked.push_back(stack.Open());
    stack.Step(parked[i], stack.RandomStory(11 + i, 90 + i));
    sleeping.push_back(stack.At(parked[i]));
  }
  std::vector<std::vector<float>> outputs(32);
  for (size_t token = 0; token < 6; ++token) {
    std::vector<Story> now;
    for (const Story& story : stories) now.push_back(story.Part(token, 1));
    const Answer answer = stack.Forward(Together(stack, decoding, now));
    ASSERT_TRUE(answer.ok()) << answer.status.error_message();
    const std::vector<std::vector<float>> cut = Cut(answer.output(), now);
    for (size_t i = 0; i < 32; ++i) outputs[i] = Join(outputs[i], cut[i]);
    if (token % 2 == 0) {
      const Story prefill = stack.RandomStory(64, 200 + token);
      stack.ExpectOracle(prefill, stack.FreshRun(prefill));
    }
  }
  for (size_t i = 0; i < 32; ++i) {
    const Stack::Whole solo = stack.FreshRun(stories[i]);
    EXPECT_TRUE(SameBits(outputs[i], solo.output)) << "sequence " << i;
    EXPECT_EQ(stack.At(decoding[i]), solo.end) << "sequence " << i;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(stack.At(parked[i]), sleeping[i]);
}

}  // namespace
}  // namespace pleiad::testing
