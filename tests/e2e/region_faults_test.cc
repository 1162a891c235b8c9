// Hostile users of regions, and steps in regions over connections that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cutting_proxy.h"
#include "tests/e2e/regions_fixture.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

TEST_P(RegionsTest, TenThousandHostileStepsMoveNothingThatTheyDoNotReport) {
  const auto region = NewRegion("tensors"), shrinking = NewRegion("shrinking");
  const uint64_t sequence = Open();
  const uint64_t ids[] = {region->id(), shrinking->id(), 0, ~0ull, random_()};
  const uint64_t numbers[] = {0, 1, 3, 512, 1024, kRegionBytes - 512, kRegionBytes, ~0ull, uint64_t{1} << 63};
  const auto number = [&] { return random_() % 3 == 0 ? random_() % kRegionBytes : numbers[random_() % 9]; };
  const auto ref = [&](v1::RegionRef* out) {
    out->set_region_id(ids[random_() % 5]);
    out->set_offset(number());
    out->set_bytes(number());
  };
  grpc::ClientContext context;
  const auto stream = server_.stub().ForwardStream(&context);
  uint64_t position = 0, applied = 0, refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (i % 100 == 0) {
      ASSERT_EQ(::truncate(shrinking->path().c_str(), static_cast<off_t>(random_() % (2 * kRegionBytes))), 0);
    }
    v1::ForwardRequest step = RequestOf(sequence, RandomPassage(random_, 1, client_.model()));
    if (random_() % 4 != 0) ref(step.mutable_highway()->mutable_region());
    if (random_() % 2 == 0) ref(step.mutable_output()->mutable_region());
    if (random_() % 4 == 0) {
      ref(step.mutable_token_region());
      if (random_() % 4 != 0) step.clear_token_ids();
    }
    step.mutable_segments(0)->set_position(position);
    if (random_() % 8 == 0) step.mutable_segments(0)->set_num_tokens(static_cast<uint32_t>(number()));
    v1::ForwardResponse response;
    ASSERT_TRUE(stream->Write(step) && stream->Read(&response)) << "step " << i;
    if (response.status().code() == 0) {
      ++applied;
      position = response.segments(0).position();
    } else {
      ++refused;
      EXPECT_GE(response.status().details_size(), 1) << response.status().message();
    }
  }
  EXPECT_GT(applied, 10u);
  EXPECT_GT(refused, 5'000u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(State(sequence), HasSubstr(absl::StrCat(" at ", position, ":")));
}

TEST_P(RegionsTest, AFileCutWhileItsStepRunsLosesTheOutputAndIsNoSignal) {
  const auto region = NewRegion("tensors");
  const uint64_t sequence = Open();
  for (const Where where : {Where::kInPlace, Where::kApart}) {
    SCOPED_TRACE(static_cast<int>(where));
    const uint64_t position = PositionOf(sequence);
    v1::ForwardRequest step = Place(RequestOf(sequence, RandomPassage(random_, 4, client_.model()), position), where,
                                    *region, 4 * kTokenBytes)
                                  .request;
    world_.AfterBatches([&] { EXPECT_EQ(::truncate(region->path().c_str(), 100), 0); });
    const v1::ForwardResponse lost = Run(step);
    world_.AfterBatches(nullptr);
    EXPECT_EQ(lost.status().code(), grpc::StatusCode::DATA_LOSS) << lost.status().message();
    EXPECT_THAT(lost.status().message(), HasSubstr("the step was applied and its output is lost: the file has 100"));
    EXPECT_EQ(PositionOf(sequence), position + 4) << "it was applied";
    step.mutable_segments(0)->set_position(position + 4);
    EXPECT_EQ(Run(step).status().code(), grpc::StatusCode::FAILED_PRECONDITION) << "nothing runs in it now";
    ASSERT_EQ(::truncate(region->path().c_str(), kRegionBytes), 0);
  }
}

// The connection dies with a step somewhere; what the client then does applies it once.
TEST_P(RegionsTest, AtThirtyCutsStepsApplyOnceWithOutputsApartAndInPlace) {
  CuttingProxy proxy(shm_ / "proxy", server_.socket_path());
  const auto region = NewRegion("tensors");
  const uint64_t calm = Open(), disturbed = Open();
  uint64_t position = 0, epoch = 1, lost = 0, late = 0;
  for (int i = 0; i < 30; ++i) {
    const bool in_place = i % 2 == 0, reply_lost = i / 2 % 2 == 0;
    SCOPED_TRACE(absl::StrCat("cut ", i, in_place ? ", in place" : ", apart", reply_lost ? ", reply lost" : ""));
    const Passage passage = RandomPassage(random_, 1 + static_cast<uint32_t>(random_() % 24), client_.model());
    const v1::ForwardResponse wanted = Run(RequestOf(calm, passage));
    const uint64_t bytes = wanted.output().data().size();
    const Placed placed =
        Place(RequestOf(disturbed, passage, position), in_place ? Where::kInPlace : Where::kApart, *region, bytes);
    v1::ForwardRequest step = placed.request;
    step.set_epoch(epoch++);
    {
      // Each on a connection of its own, which has spoken before it is cut.
      grpc::ChannelArguments own;
      own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto channel =
          grpc::CreateCustomChannel("unix:" + (shm_ / "proxy"), grpc::InsecureChannelCredentials(), own);
      const auto stub = v1::Ple::NewStub(channel);
      grpc::ClientContext context;
      const auto stream = stub->ForwardStream(&context);
      v1::ForwardResponse response;
      ASSERT_TRUE(stream->Write(v1::ForwardRequest()) && stream->Read(&response));
      proxy.Hold(reply_lost ? Direction::kReplies : Direction::kRequests, 0);
      ASSERT_TRUE(stream->Write(step));
      if (reply_lost) {
        while (PositionOf(disturbed) == position) {
        }
      } else {
        ASSERT_TRUE(proxy.AwaitHeld(Direction::kRequests, step.ByteSizeLong()));
      }
      proxy.Cut(CutSides::kBoth);
      EXPECT_FALSE(stream->Read(&response));
      (void)stream->Finish();
    }
    bool applied = false;
    if (in_place) {
      applied = PositionOf(disturbed, epoch) != position;
      EXPECT_EQ(applied, reply_lost);
    }
    (reply_lost ? lost : late) += 1;
    step.set_epoch(epoch);
    if (!applied) {
      const v1::ForwardResponse again = Run(step);
      ASSERT_EQ(again.status().code(), 0) << again.status().message();
    }
    position += passage.size();
    ASSERT_EQ(region->Get(placed.output_offset, bytes), wanted.output().data());
    ASSERT_EQ(State(disturbed), State(calm));
    // In place, what was applied would be taken for an input: sending it again gives something else.
    if (in_place && i < 4) {
      EXPECT_EQ(Run(step).status().code(), 0);
      EXPECT_NE(region->Get(placed.output_offset, bytes), wanted.output().data());
      ASSERT_EQ(State(disturbed).substr(0, 8), State(calm).substr(0, 8));
      const v1::ForwardResponse mended = Run(RequestOf(disturbed, passage, position - passage.size()));
      ASSERT_EQ(mended.status().code(), 0) << mended.status().message();
      ASSERT_EQ(State(disturbed), State(calm));
    }
  }
  EXPECT_GT(lost, 10u);
  EXPECT_GT(late, 10u);
}

}  // namespace
}  // namespace pleiad::testing
