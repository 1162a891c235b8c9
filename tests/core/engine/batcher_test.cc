#include "core/engine/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ReadyStep Step(uint64_t arrival, uint32_t layer, uint32_t tokens, Sharing sharing = Sharing::kShared) {
  ReadyStep step;
  step.arrival = arrival;
  step.layer = LayerOrdinal(layer);
  step.num_tokens = tokens;
  step.sharing = sharing;
  return step;
}

std::vector<uint64_t> Next(Batcher& batcher) {
  std::vector<uint64_t> arrivals;
  for (const ReadyStep& step : batcher.Next()) arrivals.push_back(step.arrival);
  return arrivals;
}

TEST(Batcher, TakesEveryReadyStepOfALayerOldestFirst) {
  Batcher batcher(10);
  batcher.Add(Step(3, 0, 1));
  batcher.Add(Step(1, 0, 4));
  batcher.Add(Step(2, 0, 5));
  EXPECT_THAT(Next(batcher), ElementsAre(1, 2, 3));
  EXPECT_TRUE(batcher.empty());
  EXPECT_THAT(Next(batcher), IsEmpty());
}

TEST(Batcher, StopsAtTheFirstThatDoesNotFit) {
  Batcher batcher(10);
  batcher.Add(Step(1, 0, 6));
  batcher.Add(Step(2, 0, 5));
  batcher.Add(Step(3, 0, 1));  // would fit, but is younger
  EXPECT_THAT(Next(batcher), ElementsAre(1));
  EXPECT_THAT(Next(batcher), ElementsAre(2, 3));
}

TEST(Batcher, TheLayerWithTheOldestStepGoesNext) {
  Batcher batcher(10);
  batcher.Add(Step(2, 0, 1));
  batcher.Add(Step(1, 1, 1));
  batcher.Add(Step(3, 1, 1));
  EXPECT_THAT(Next(batcher), ElementsAre(1, 3));
  EXPECT_THAT(Next(batcher), ElementsAre(2));
}

TEST(Batcher, AStepThatDoesNotShareRunsAlone) {
  Batcher batcher(10);
  batcher.Add(Step(1, 0, 1));
  batcher.Add(Step(2, 0, 1, Sharing::kAlone));
  batcher.Add(Step(3, 0, 1));
  EXPECT_THAT(Next(batcher), ElementsAre(1));
  EXPECT_THAT(Next(batcher), ElementsAre(2));
  EXPECT_THAT(Next(batcher), ElementsAre(3));
}

TEST(Batcher, RemovedStepsAreGone) {
  Batcher batcher(10);
  batcher.Add(Step(1, 0, 1));
  EXPECT_FALSE(batcher.Remove(LayerOrdinal(1), 1));
  EXPECT_TRUE(batcher.Remove(LayerOrdinal(0), 1));
  EXPECT_FALSE(batcher.Remove(LayerOrdinal(0), 1));
  EXPECT_TRUE(batcher.empty());
}

}  // namespace
}  // namespace pleiad
