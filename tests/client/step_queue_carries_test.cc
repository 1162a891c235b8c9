// Where steps start: what the queue remembers of carries between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/step_queue_fixture.h"

namespace pleiad::client::internal {
namespace {

using ::testing::ElementsAre;

TEST_F(StepQueueTest, AStepAfterARestoreStartsWhereTheCarryWasPut) {
  Sequence sequence = Open();
  Add(sequence, 3);
  EXPECT_THAT(Send(), ElementsAre(1));
  Succeed(1);
  ASSERT_TRUE(sequence.Restore({.layers = {{.layer_index = 1, .position = 50}}}).ok());
  Add(sequence, 1);
  EXPECT_THAT(Send(), ElementsAre(2));
  EXPECT_EQ(SentPosition(2), 50u);
}

TEST_F(StepQueueTest, NothingIsLeftOfManySequencesThatAreGone) {
  // More than the queue remembers, and each where the one before it was in memory.
  Sequence stays = Open();
  Add(stays, 2);
  EXPECT_THAT(Send(), ElementsAre(1));
  for (uint64_t id = 2; id < 5000; ++id) {
    Sequence sequence = Open();
    Add(sequence, 5);
    ASSERT_THAT(Send(), ElementsAre(id));
    ASSERT_EQ(SentPosition(id), 0u);
    Succeed(id);
  }
  Succeed(1);
  Add(stays, 1);
  EXPECT_THAT(Send(), ElementsAre(5000));
  EXPECT_EQ(SentPosition(5000), 2u);
}

TEST_F(StepQueueTest, CarriesOfSeveralLayersOfASequenceStandApart) {
  model_.layers.push_back(LayerInfo{4, 100, "BF16", 10});
  Sequence sequence = Open();
  for (const uint32_t layer : {4u, 1u, 4u}) {
    Step step;
    step.layer_index = layer;
    step.segments = {{&sequence, layer}};
    step.token_ids.resize(layer, 11);
    step.highway.zeros = true;
    queue_->Add(std::move(step), [](const absl::StatusOr<StepResult>&) {});
    for (const uint64_t id : Send()) Succeed(id);
  }
  EXPECT_EQ(sequence.position(1), 1u);
  EXPECT_EQ(sequence.position(4), 8u);
  EXPECT_EQ(sequence.position(9), 0u);
}

}  // namespace
}  // namespace pleiad::client::internal
