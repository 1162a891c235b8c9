// One order of sums: bits do not depend on graphs, batches or cuttings. Without it, they stay within the bound.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>

#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/rig_pair.h"

namespace pleiad {
namespace {

constexpr double kBound = 3e-4;

enum class Size : uint8_t { kOdd, kReleased };
enum class Sums : uint8_t { kFastest, kInvariant };

struct ExactCase {
  Size size;
  Sums sums;
};

class CudaExactTest : public OnGpu<::testing::TestWithParam<ExactCase>> {
 protected:
  bool exact() const { return GetParam().sums == Sums::kInvariant; }
  bool released() const { return GetParam().size == Size::kReleased; }
  oracle::Model Model() const {
    return released() ? MakeModel({.hidden = 2560, .embed = 2560, .heads_per_ngram = 8}, 151)
                      : MakeModel({.hidden = 29, .hc = 3, .embed = 52}, 152);
  }
  DeviceOptions Options(uint32_t carries, uint32_t max_tokens) const {
    DeviceOptions options;
    options.batch_invariant = exact();
    options.carries = carries;
    options.max_tokens = max_tokens;
    return options;
  }
  // Each of these on its own, or all together.
  void Expect(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    if (exact() && !got.empty()) {
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << what;
    }
    pooled_.Add(got, want);
  }
  void TearDown() override {
    if (pooled_.values() == 0) return;
    EXPECT_LE(pooled_.relative_l2(), exact() ? 0.0 : kBound);
  }

 private:
  PooledError pooled_;
};

// Batches of every size that has a graph, and of some that have none.
TEST_P(CudaExactTest, GraphsGiveWhatLaunchesGive) {
  constexpr uint32_t kCarries = 8, kTokens = 200;
  DeviceOptions options = Options(kCarries, 80);
  options.arena_slots = 100;
  options.staging_rows = 2 * 80 * (released() ? 16 : 4);
  DeviceOptions launches = options;
  launches.cuda_graphs = false;
  RigPair pair(Model(), kTokens, 153, {launches, DeviceUnderTest()}, {options, DeviceUnderTest()});
  pair.Poison();
  const DeviceStats before = pair.peer().device().stats();
  std::mt19937 random(154);
  for (uint32_t count = 1; count <= 66; ++count) {
    const PairOutputs out = pair.Run({{.first = count, .count = count}}, {}, &random);
    Expect(out.peer[0], out.base[0], "T = " + std::to_string(count));
  }
  RandomWalk walk(kCarries, options.rollback_tokens, kTokens, 64, 155);
  for (uint32_t batch = 0; batch < (released() ? 60 : 300); ++batch) {
    const std::vector<PairStep> steps = walk.Next(&pair);
    RigFormat format = walk.NextFormat();
    format.kind = OutputKind::kDelta;
    const PairOutputs out = pair.Run(steps, format, &walk.random());
    for (size_t s = 0; s < steps.size(); ++s) Expect(out.peer[s], out.base[s], "batch " + std::to_string(batch));
    const uint32_t carry = batch % kCarries;
    const auto [peer, base] = pair.ReadRows(carry);
    Expect(peer, base, "rows after batch " + std::to_string(batch));
  }
  if (CpuStandsIn()) return;
  const DeviceStats after = pair.peer().device().stats();
  EXPECT_EQ(after.capture_failures, 0u);
  EXPECT_GE(after.graph_batches - before.graph_batches, 64u);
  EXPECT_LT(after.graph_batches, after.batches) << "65 and 66 tokens have no graph";
  EXPECT_EQ(pair.base().device().stats().graph_batches, 0u);
  EXPECT_GT(after.busy_seconds, 0);
}

TEST_P(CudaExactTest, AnyCuttingGivesTheSame) {
  const uint32_t tokens = released() ? 600 : 400;
  StageRig rig = RandomRig(Model(), tokens, 156, Options(3, tokens), DeviceUnderTest());
  RigCarry carry = rig.NewCarry();
  const std::vector<float> whole = rig.RunCut(&carry, 0, {tokens});
  const std::vector<float> rows = rig.ReadRows(carry);
  std::mt19937 random(157);
  std::vector<std::vector<uint32_t>> cuts = {std::vector<uint32_t>(tokens, 1), {tokens - 513 % tokens, 513 % tokens}};
  for (const uint32_t length : {2u, 7u, 9u, 63u, 64u, 65u, 129u}) {
    std::vector<uint32_t>& cut = cuts.emplace_back(tokens / length, length);
    if (tokens % length != 0) cut.push_back(tokens % length);
  }
  for (int i = 0; i < 4; ++i) {
    std::vector<uint32_t>& cut = cuts.emplace_back();
    for (uint32_t left = tokens; left > 0; left -= cut.back()) cut.push_back(1 + random() % std::min(left, 150u));
  }
  for (const std::vector<uint32_t>& cut : cuts) {
    carry.ring = {};
    Expect(rig.RunCut(&carry, 0, cut), whole, "cut beginning with " + std::to_string(cut[0]));
    Expect(rig.ReadRows(carry), rows, "rows of the cut beginning with " + std::to_string(cut[0]));
  }
}

// 1 to 40 sequences in a batch, of 0 to 40 tokens.
TEST_P(CudaExactTest, AnyCompanyGivesTheSame) {
  constexpr uint32_t kSequences = 40, kLength = 50;
  const uint32_t tokens = kLength + 4 * kSequences;
  StageRig rig = RandomRig(Model(), tokens, 158, Options(kSequences + 1, 2000), DeviceUnderTest());
  std::vector<std::vector<float>> whole;
  RigCarry alone = rig.NewCarry();
  for (uint32_t s = 0; s < kSequences; ++s) {
    alone.ring = {};
    whole.push_back(rig.RunCut(&alone, 4 * s, {kLength}));
  }
  std::vector<RigCarry> carries;
  for (uint32_t s = 0; s < kSequences; ++s) carries.push_back(rig.NewCarry());
  std::mt19937 random(159);
  for (int round = 0; round < 3; ++round) {
    for (RigCarry& carry : carries) carry = {.slot = carry.slot, .ring = {}, .start = {}};
    std::vector<uint32_t> position(kSequences, 0);
    std::vector<std::vector<float>> out(kSequences);
    while (position != std::vector<uint32_t>(kSequences, kLength)) {
      std::vector<RigStep> steps;
      std::vector<uint32_t> who;
      const uint32_t longest = random() % 2 == 0 ? 2 : 40;
      for (uint32_t s = 0; s < kSequences; ++s) {
        if (random() % 3 == 0) continue;
        const uint32_t count = std::min(kLength - position[s], static_cast<uint32_t>(random() % (longest + 1)));
        steps.push_back({.carry = &carries[s], .first = 4 * s + position[s], .count = count});
        who.push_back(s);
        position[s] += count;
      }
      const std::vector<std::vector<float>> parts = rig.Run(steps);
      for (size_t i = 0; i < who.size(); ++i) out[who[i]].insert(out[who[i]].end(), parts[i].begin(), parts[i].end());
    }
    for (uint32_t s = 0; s < kSequences; ++s) Expect(out[s], whole[s], "sequence " + std::to_string(s));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaExactTest,
                         ::testing::Values(ExactCase{Size::kOdd, Sums::kInvariant},
                                           ExactCase{Size::kOdd, Sums::kFastest},
                                           ExactCase{Size::kReleased, Sums::kInvariant},
                                           ExactCase{Size::kReleased, Sums::kFastest}),
                         [](const auto& param) {
                           return std::string(param.param.size == Size::kOdd ? "Odd" : "Released") +
                                  (param.param.sums == Sums::kInvariant ? "Invariant" : "Fastest");
                         });

}  // namespace
}  // namespace pleiad
