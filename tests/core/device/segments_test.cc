// Many sequences in one batch against each alone.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

constexpr double kBound = 3e-4;
constexpr uint32_t kTokens = 200;

StageRig MakeRig(bool batch_invariant, uint32_t threads) {
  DeviceOptions options;
  options.batch_invariant = batch_invariant;
  options.threads = threads;
  options.carries = 16;
  return RandomRig(MakeModel({.hidden = 29, .hc = 3, .embed = 52}, 51), kTokens, 52, options);
}

// B12: lengths 1, 7, 3 and an empty one.
TEST(SegmentsTest, RaggedBatchEqualsSoloRuns) {
  StageRig rig = MakeRig(true, 2);
  RigCarry a = rig.NewCarry();
  RigCarry b = rig.NewCarry();
  RigCarry c = rig.NewCarry();
  RigCarry empty = rig.NewCarry();
  rig.RunCut(&empty, 100, {13});
  const RigCarry before = empty;
  const std::vector<float> empty_rows = rig.ReadRows(empty);
  const auto together = rig.Run({{.carry = &a, .first = 0, .count = 1},
                                 {.carry = &b, .first = 20, .count = 7},
                                 {.carry = &empty, .first = 0, .count = 0},
                                 {.carry = &c, .first = 40, .count = 3}});
  RigCarry solo = rig.NewCarry();
  EXPECT_EQ(rig.RunCut(&solo, 0, {1}), together[0]);
  EXPECT_EQ(rig.ReadRows(solo), rig.ReadRows(a));
  solo.ring = {};
  EXPECT_EQ(rig.RunCut(&solo, 20, {7}), together[1]);
  EXPECT_EQ(rig.ReadRows(solo), rig.ReadRows(b));
  solo.ring = {};
  EXPECT_EQ(rig.RunCut(&solo, 40, {3}), together[3]);
  EXPECT_EQ(rig.ReadRows(solo), rig.ReadRows(c));
  EXPECT_EQ(rig.ReadRows(empty), empty_rows);
  EXPECT_EQ(empty.ring.cursor, before.ring.cursor);
}

// Random batches of one to sixteen sequences, random lengths, threads: bit-equal to one sequence fed at once.
TEST(SegmentsTest, RandomBatchesAreBitEqualForAnyThreads) {
  constexpr uint32_t kSequences = 16;
  constexpr uint32_t kLength = 60;
  StageRig reference = MakeRig(true, 1);
  std::vector<std::vector<float>> whole;
  std::vector<std::vector<float>> rows;
  for (uint32_t s = 0; s < kSequences; ++s) {
    RigCarry carry = reference.NewCarry();
    whole.push_back(reference.RunCut(&carry, s * 8, {kLength}));
    rows.push_back(reference.ReadRows(carry));
  }
  for (uint32_t threads : {1, 2, 5}) {
    StageRig rig = MakeRig(true, threads);
    std::mt19937 random(53 + threads);
    std::vector<RigCarry> carries;
    for (uint32_t s = 0; s < kSequences; ++s) carries.push_back(rig.NewCarry());
    std::vector<uint32_t> position(kSequences, 0);
    std::vector<std::vector<float>> out(kSequences);
    for (;;) {
      std::vector<RigStep> steps;
      std::vector<uint32_t> who;
      for (uint32_t s = 0; s < kSequences; ++s) {
        if (position[s] == kLength || random() % 3 == 0) continue;
        const uint32_t count = std::min<uint32_t>(kLength - position[s], 1 + random() % 20);
        steps.push_back({.carry = &carries[s], .first = s * 8 + position[s], .count = count});
        who.push_back(s);
        position[s] += count;
      }
      const auto parts = rig.Run(steps);
      for (size_t i = 0; i < who.size(); ++i) {
        out[who[i]].insert(out[who[i]].end(), parts[i].begin(), parts[i].end());
      }
      if (position == std::vector<uint32_t>(kSequences, kLength)) break;
    }
    EXPECT_EQ(out, whole) << threads;
    for (uint32_t s = 0; s < kSequences; ++s) EXPECT_EQ(rig.ReadRows(carries[s]), rows[s]) << threads;
  }
}

TEST(SegmentsTest, FastestOrderStaysWithinTheBoundInAnyBatch) {
  StageRig rig = MakeRig(false, 2);
  RigCarry a = rig.NewCarry();
  RigCarry b = rig.NewCarry();
  const auto out = rig.Run({{.carry = &a, .first = 0, .count = 80}, {.carry = &b, .first = 100, .count = 90}});
  EXPECT_LE(oracle::RelativeL2(out[0], rig.Oracle(0, 80).delta), kBound);
  EXPECT_LE(oracle::RelativeL2(out[1], rig.Oracle(100, 90).delta), kBound);
}

// Segments without a carry start fresh, may be many, and leave nothing behind.
TEST(SegmentsTest, StepsWithoutACarryAreFreshEveryTime) {
  StageRig rig = MakeRig(true, 2);
  RigCarry carry = rig.NewCarry();
  rig.RunCut(&carry, 30, {20});
  const std::vector<float> rows = rig.ReadRows(carry);
  const auto out = rig.Run({{.first = 0, .count = 12}, {.first = 0, .count = 12}, {.first = 5, .count = 1}});
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(rig.RunOne({.first = 5, .count = 1}), out[2]);
  RigCarry fresh = rig.NewCarry();
  EXPECT_EQ(rig.RunCut(&fresh, 0, {12}), out[0]);
  EXPECT_EQ(rig.ReadRows(carry), rows);
}

// Work is done in the order of the calls, with nobody waiting in between.
TEST(SegmentsTest, QueuedBatchesRunInOrder) {
  StageRig rig = MakeRig(true, 2);
  RigCarry carry = rig.NewCarry();
  const std::vector<float> whole = rig.RunCut(&carry, 0, {100});
  carry.ring = {};
  std::vector<RigBatch> batches;
  Ticket last;
  for (uint32_t t = 0; t < 100; ++t) {
    batches.push_back(rig.Make({{.carry = &carry, .first = t, .count = 1}}));
    const Ticket ticket = rig.Start(batches.back());
    EXPECT_GT(ticket, last);
    last = ticket;
  }
  ASSERT_TRUE(rig.device().Wait(last).ok());
  for (uint32_t t = 0; t < 100; ++t) {
    const std::vector<std::byte>& output = batches[t].outputs[0];
    EXPECT_EQ(std::memcmp(output.data(), &whole[t * rig.channels()], output.size()), 0) << t;
  }
}

}  // namespace
}  // namespace pleiad
