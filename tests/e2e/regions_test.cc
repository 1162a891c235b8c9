// Steps whose tensors lie in memory that client and server share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cutting_proxy.h"
#include "tests/e2e/regions_fixture.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

TEST_P(RegionsTest, StepsThroughRegionsEqualInlineSteps) {
  const auto region = NewRegion("tensors");
  const uint64_t calm = Open(), shared = Open();
  for (int i = 0; i < 120; ++i) {
    const auto where = static_cast<Where>(i % static_cast<int>(Where::kEnd));
    const Passage passage = RandomPassage(random_, 1 + static_cast<uint32_t>(random_() % 24), client_.model());
    v1::ForwardRequest step = RequestOf(calm, passage);
    const bool halves = random_() % 2 == 0;
    if (halves) {
      step.mutable_highway()->set_dtype(v1::DTYPE_BF16);
      step.mutable_highway()->mutable_data()->resize(step.highway().data().size() / 2);
    }
    if (random_() % 2 == 0) step.mutable_output()->set_kind(v1::OUTPUT_KIND_HIGHWAY);
    const bool keeps = where == Where::kInPlace || where == Where::kInputAlone || random_() % 2 == 0;
    step.mutable_output()->set_dtype(keeps == halves ? v1::DTYPE_BF16 : v1::DTYPE_F32);
    SCOPED_TRACE(absl::StrCat("step ", i, ": ", step.output().ShortDebugString()));
    const v1::ForwardResponse wanted = Run(step);
    ASSERT_EQ(wanted.status().code(), 0) << wanted.status().message();

    const Placed placed = Place(step, where, *region, wanted.output().data().size());
    v1::ForwardRequest request = placed.request;
    request.mutable_segments(0)->set_sequence_id(shared);
    const v1::ForwardResponse got = Run(request);
    ASSERT_EQ(got.status().code(), 0) << got.status().message();
    EXPECT_EQ(got.output().source_case(), v1::Tensor::kRegion);
    EXPECT_EQ(got.output().dtype(), wanted.output().dtype());
    EXPECT_EQ(got.output().region().region_id(), region->id());
    EXPECT_EQ(got.output().region().offset(), placed.output_offset);
    ASSERT_EQ(region->Get(placed.output_offset, wanted.output().data().size()), wanted.output().data());
    ASSERT_EQ(State(shared), State(calm));
  }
  // Tensors in part inline, or at addresses that the device cannot use, are copied.
  const uint64_t found = world_.parts_in_pinned_memory;
  EXPECT_GE(found, held() ? 30u : 0u);
  EXPECT_LE(found, held() ? 90u : 0u);
}

TEST_P(RegionsTest, AUnaryStepAndAPrestageTakeThemToo) {
  const auto region = NewRegion("tensors");
  const uint64_t calm = Open(), shared = Open();
  const Passage passage = RandomPassage(random_, 5, client_.model());
  const v1::ForwardResponse wanted = Run(RequestOf(calm, passage));
  v1::ForwardRequest request =
      Place(RequestOf(shared, passage), Where::kTokensToo, *region, wanted.output().data().size()).request;
  v1::ForwardRequest prestage = request;
  prestage.set_mode(v1::MODE_PRESTAGE);
  prestage.clear_highway();
  prestage.clear_output();
  EXPECT_EQ(Run(prestage).status().code(), 0);
  grpc::ClientContext context;
  v1::ForwardResponse got;
  ASSERT_TRUE(server_.stub().Forward(&context, request, &got).ok());
  EXPECT_EQ(region->Get(got.output().region().offset(), wanted.output().data().size()), wanted.output().data());
}

TEST_P(RegionsTest, TheClientLibrarysStepsTakeThemAndAreSentAgainFromThem) {
  CuttingProxy proxy(shm_ / "proxy", server_.socket_path());
  client::Client cut = InProcessServer::ConnectTo("unix:" + (shm_ / "proxy"));
  const auto calm = *client_.OpenSequence(), shared = *cut.OpenSequence();
  const auto stream = *client_.OpenStream(), cut_stream = *cut.OpenStream();
  const auto region = client_.ShareMemory(shm_.path(), kRegionBytes);
  ASSERT_TRUE(region.ok()) << region.status();
  for (int i = 0; i < 12; ++i) {
    const Passage passage = RandomPassage(random_, 1 + static_cast<uint32_t>(random_() % 24), client_.model());
    const std::string wanted = RunPassage(*stream, calm, passage);
    std::memcpy((*region)->data().data(), passage.highway.data(), wanted.size());
    client::Step step = StepOf(shared, passage, 0, passage.size());
    step.highway.data = {};
    step.highway.region = (*region)->Span(0, wanted.size());
    EXPECT_THAT(cut_stream->Run(step).status().message(), HasSubstr("output_region")) << "in place";
    step.output_region = (*region)->Span(wanted.size() - 1, wanted.size());
    EXPECT_THAT(cut_stream->Run(step).status().message(), HasSubstr("output_region")) << "over a part of it";
    step.output_region = (*region)->Span(kRegionBytes / 2, wanted.size());
    if (i % 3 != 0) {
      const uint64_t bytes = 4 * step.token_ids.size(), at = kRegionBytes - bytes;
      std::memcpy((*region)->data().data() + at, step.token_ids.data(), bytes);
      step.token_region = (*region)->Span(at, bytes);
      EXPECT_THAT(cut_stream->Run(step).status().message(), HasSubstr("token_ids has")) << "both";
      step.token_ids.clear();
    }
    step.segments[0].position = shared.position(1);
    if (i % 2 == 1) {
      proxy.Hold(Direction::kReplies, 0);
      std::promise<absl::StatusOr<client::StepResult>> answer;
      cut_stream->Submit(step, [&](absl::StatusOr<client::StepResult> result) { answer.set_value(std::move(result)); });
      ASSERT_TRUE(proxy.AwaitHeld(Direction::kReplies, 1));
      proxy.Cut(CutSides::kBoth);
      const auto result = answer.get_future().get();
      ASSERT_TRUE(result.ok()) << result.status();
    } else {
      const auto result = cut_stream->Run(step);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->output.empty());
    }
    const absl::Span<const std::byte> got = (*region)->data().subspan(kRegionBytes / 2, wanted.size());
    ASSERT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size()), 0) << "step " << i;
  }
  EXPECT_EQ(client_.ShareMemory(shm_ / "absent", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_.ShareMemory(shm_.path(), 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_.ShareMemory(model_->path(), 1).status().code(), absl::StatusCode::kInvalidArgument)
      << "another folder";
}

struct Refusal {
  const char* what;
  std::function<void(v1::ForwardRequest&)> spoil;
  v1::Reason reason;
  const char* text;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
};

TEST_P(RegionsTest, RefusalsNameTheFieldAndMoveNothing) {
  const auto region = NewRegion("tensors"), cut = NewRegion("cut");
  const uint64_t sequence = Open();
  const Passage passage = RandomPassage(random_, 4, client_.model());
  const uint64_t bytes = 4 * kTokenBytes;
  ASSERT_EQ(::truncate(cut->path().c_str(), 100), 0);
  const Refusal refusals[] = {
      {"an unknown region", [&](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_region_id(1); },
       v1::REASON_INVALID_FIELD, "highway.region.region_id: must name a region"},
      {"no bytes", [&](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_bytes(0); },
       v1::REASON_INVALID_FIELD, "highway.region.offset 0 + bytes 0"},
      {"beyond the region",
       [&](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_offset(kRegionBytes); },
       v1::REASON_INVALID_FIELD, "within the region, which has 65536 bytes"},
      {"an overflow", [&](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_offset(~0ull); },
       v1::REASON_INVALID_FIELD, "within the region"},
      {"another size", [&](v1::ForwardRequest& r) { r.mutable_highway()->mutable_region()->set_bytes(bytes - 4); },
       v1::REASON_SIZE_MISMATCH, "2044"},
      {"another size with an output of its own",
       [&](v1::ForwardRequest& r) {
         r.mutable_highway()->mutable_region()->set_bytes(bytes + 4);
         *r.mutable_output()->mutable_region() = region->Ref(bytes * 2, bytes);
       },
       v1::REASON_SIZE_MISMATCH, "2052"},
      {"an output of another size",
       [&](v1::ForwardRequest& r) { *r.mutable_output()->mutable_region() = region->Ref(bytes, bytes / 2); },
       v1::REASON_SIZE_MISMATCH, "output.region.bytes 1024"},
      {"another dtype in place", [&](v1::ForwardRequest& r) { r.mutable_output()->set_dtype(v1::DTYPE_BF16); },
       v1::REASON_SIZE_MISMATCH, "takes a region of its own"},
      {"no dtype", [&](v1::ForwardRequest& r) { r.mutable_highway()->clear_dtype(); }, v1::REASON_INVALID_FIELD,
       "highway.dtype"},
      {"an output over part of its input",
       [&](v1::ForwardRequest& r) { *r.mutable_output()->mutable_region() = region->Ref(8, bytes); },
       v1::REASON_INVALID_FIELD, "output.region offset 8"},
      {"an output over the tokens",
       [&](v1::ForwardRequest& r) {
         r.clear_token_ids();
         *r.mutable_token_region() = region->Ref(bytes - 4, 16);
       },
       v1::REASON_INVALID_FIELD, "apart from it and from the token_region"},
      {"tokens twice", [&](v1::ForwardRequest& r) { *r.mutable_token_region() = region->Ref(bytes, 16); },
       v1::REASON_INVALID_FIELD, "token_ids 4 ids: must be empty"},
      {"tokens of another size",
       [&](v1::ForwardRequest& r) {
         r.clear_token_ids();
         *r.mutable_token_region() = region->Ref(bytes, 15);
       },
       v1::REASON_SIZE_MISMATCH, "token_region.bytes 15 bytes"},
      {"tokens outside the vocabulary",
       [&](v1::ForwardRequest& r) {
         r.clear_token_ids();
         region->Put(bytes, std::string(16, '\xff'));
         *r.mutable_token_region() = region->Ref(bytes, 16);
       },
       v1::REASON_TOKEN_OUT_OF_VOCABULARY, "4294967295"},
      {"more tokens than allowed",
       [&](v1::ForwardRequest& r) {
         r.clear_token_ids();
         r.mutable_segments(0)->set_num_tokens(~0u);
         *r.mutable_token_region() = region->Ref(bytes, 16);
       },
       v1::REASON_TOO_MANY_TOKENS, "4294967295 tokens"},
      {"a prestage with a region", [&](v1::ForwardRequest& r) { r.set_mode(v1::MODE_PRESTAGE); },
       v1::REASON_INVALID_FIELD, "a prestage has no tensor"},
      {"a prestage with an output",
       [&](v1::ForwardRequest& r) {
         r.set_mode(v1::MODE_PRESTAGE);
         *r.mutable_output()->mutable_region() = r.highway().region();
         r.clear_highway();
       },
       v1::REASON_INVALID_FIELD, "a prestage has no output"},
      {"an input cut short",
       [&](v1::ForwardRequest& r) { *r.mutable_highway()->mutable_region() = cut->Ref(0, bytes); },
       v1::REASON_INVALID_FIELD, "100 bytes now", grpc::StatusCode::FAILED_PRECONDITION},
      {"an output cut short",
       [&](v1::ForwardRequest& r) { *r.mutable_output()->mutable_region() = cut->Ref(0, bytes); },
       v1::REASON_INVALID_FIELD, "output.region: the file has 100 bytes", grpc::StatusCode::FAILED_PRECONDITION},
  };
  const v1::ForwardRequest good = Place(RequestOf(sequence, passage, 0), Where::kInPlace, *region, bytes).request;
  const std::string before = State(sequence);
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    v1::ForwardRequest request = good;
    refusal.spoil(request);
    const v1::ForwardResponse response = Run(request);
    EXPECT_EQ(response.status().code(), refusal.code) << response.status().message();
    ASSERT_GE(response.status().details_size(), 1);
    EXPECT_EQ(response.status().details(0).reason(), refusal.reason);
    EXPECT_THAT(response.status().message(), HasSubstr(refusal.text));
    EXPECT_FALSE(response.has_output());
    EXPECT_EQ(State(sequence), before);
  }
  EXPECT_EQ(std::filesystem::file_size(cut->path()), 100u);
  EXPECT_EQ(Run(good).status().code(), 0);
  EXPECT_NE(State(sequence), before);
}

TEST_P(RegionsTest, RegionsLiveAsLongAsTheirStreamAndAreForUnixSocketsAlone) {
  const auto region = NewRegion("tensors");
  const uint64_t sequence = Open();
  const Passage passage = RandomPassage(random_, 4, client_.model());
  const v1::ForwardRequest step =
      Place(RequestOf(sequence, passage, 0), Where::kInPlace, *region, 4 * kTokenBytes).request;
  EXPECT_EQ(Run(step).status().code(), 0);

  const auto tcp = v1::Ple::NewStub(
      grpc::CreateChannel(server_.server().addresses().addresses[1].ToString(), grpc::InsecureChannelCredentials()));
  EXPECT_THAT(Run(*tcp, step).status().message(), HasSubstr("unix: listener"));
  grpc::ClientContext context;
  const auto attach = tcp->AttachRegions(&context);
  attach->WritesDone();
  EXPECT_EQ(attach->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);

  v1::AttachRegionsRequest more;
  more.set_kind(v1::REGION_KIND_SHM_FILE);
  more.set_path("absent");
  more.set_bytes(1);
  EXPECT_EQ(region->Attach(more).status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run(step).status().code(), 0) << "a refusal leaves the stream and its regions";

  // Beyond any path and handle.
  more.set_gpu_uuid(std::string(1 << 16, 'x'));
  grpc::ClientContext large_context;
  const auto large = server_.stub().AttachRegions(&large_context);
  v1::AttachRegionsResponse none;
  EXPECT_TRUE(large->Write(more));
  EXPECT_FALSE(large->Read(&none));
  EXPECT_THAT(large->Finish().error_message(), HasSubstr("at most 65536 bytes"));
  EXPECT_TRUE(region->Detach().ok());
  EXPECT_THAT(Run(step).status().message(), HasSubstr("must name a region"));
}

INSTANTIATE_TEST_SUITE_P(Files, RegionsTest, ::testing::Values(RegionFiles::kCopied, RegionFiles::kHeld), NameOfFiles);

}  // namespace
}  // namespace pleiad::testing
