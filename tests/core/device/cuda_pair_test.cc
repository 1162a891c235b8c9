// The CUDA device beside the CPU device: the same random plans, at small odd geometries and at the released one.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/rig_pair.h"

namespace pleiad {
namespace {

constexpr double kBound = 3e-4;

struct PairCase {
  SmallModel model;
  uint32_t rollback;
};

std::string NameOf(const PairCase& c) {
  return absl::StrCat("H", c.model.hidden, "Hc", c.model.hc, "E", c.model.embed, "K", c.model.kernel, "N",
                      c.model.ngram, "Heads", c.model.heads_per_ngram, "Rollback", c.rollback);
}

DeviceOptions Options(const PairCase& c, uint32_t max_tokens) {
  DeviceOptions options;
  options.carries = 6;
  options.rollback_tokens = c.rollback;
  options.max_tokens = max_tokens;
  options.arena_slots = 64;
  options.staging_rows = 2 * max_tokens * (c.model.ngram - 1) * c.model.heads_per_ngram;
  return options;
}

class CudaPairTest : public OnGpu<::testing::TestWithParam<PairCase>> {
 protected:
  static constexpr uint32_t kTokens = 160;

  // `batches` random batches on carries full of NaN, judged over all of them together.
  void Walk(const DeviceOptions& options, uint32_t batches, uint64_t seed) {
    RigPair pair(MakeModel(GetParam().model, seed), kTokens, seed + 1, options, DeviceUnderTest());
    pair.Poison();
    RandomWalk walk(options.carries, options.rollback_tokens, kTokens, options.max_tokens, seed + 2);
    PooledError delta, highway, rows;
    for (uint32_t batch = 0; batch < batches; ++batch) {
      if (batch % 16 == 0) pair.PoisonScratch(options.max_tokens);
      const std::vector<PairStep> steps = walk.Next(&pair);
      const RigFormat format = walk.NextFormat();
      const PairOutputs out = pair.Run(steps, format, &walk.random());
      for (size_t s = 0; s < steps.size(); ++s) {
        (format.kind == OutputKind::kDelta ? delta : highway).Add(out.peer[s], out.base[s]);
      }
      if (batch % 10 != 9) continue;
      for (uint32_t carry = 0; carry < options.carries; ++carry) {
        const auto [peer, base] = pair.ReadRows(carry);
        rows.Add(peer, base);
      }
    }
    EXPECT_GE(delta.values(), 60 * pair.peer().channels());
    EXPECT_GE(highway.values(), 60 * pair.peer().channels());
    EXPECT_LE(delta.relative_l2(), kBound);
    EXPECT_LE(highway.relative_l2(), kBound);
    if (pair.peer().state_len() > 0) {
      EXPECT_LE(rows.relative_l2(), kBound);
    }
  }
};

TEST_P(CudaPairTest, RandomBatchesAgree) { Walk(Options(GetParam(), 130), 150, 101); }

TEST_P(CudaPairTest, SmallBatchesAgree) { Walk(Options(GetParam(), std::max(12u, GetParam().rollback + 1)), 200, 111); }

TEST_P(CudaPairTest, BatchInvariantSumsAgree) {
  DeviceOptions options = Options(GetParam(), 130);
  options.batch_invariant = true;
  Walk(options, 100, 121);
}

TEST_P(CudaPairTest, BatchesLaunchedOneByOneAgree) {
  DeviceOptions options = Options(GetParam(), 70);
  options.cuda_graphs = false;
  Walk(options, 100, 131);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaPairTest,
    ::testing::Values(
        PairCase{{.hidden = 24, .hc = 4, .embed = 40, .kernel = 4, .ngram = 3, .heads_per_ngram = 2}, 8},
        PairCase{{.hidden = 1, .hc = 1, .embed = 4, .kernel = 4, .ngram = 3, .heads_per_ngram = 2}, 8},
        PairCase{{.hidden = 7, .hc = 2, .embed = 20, .kernel = 2, .ngram = 2, .heads_per_ngram = 4}, 1},
        PairCase{{.hidden = 12, .hc = 3, .embed = 36, .kernel = 3, .ngram = 3, .heads_per_ngram = 3}, 0},
        PairCase{{.hidden = 29, .hc = 4, .embed = 52, .kernel = 5, .ngram = 2, .heads_per_ngram = 2}, 8},
        PairCase{{.hidden = 64, .hc = 1, .embed = 128, .kernel = 1, .ngram = 3, .heads_per_ngram = 8}, 8},
        PairCase{{.hidden = 33, .hc = 4, .embed = 33, .kernel = 5, .ngram = 2, .heads_per_ngram = 1}, 20},
        PairCase{{.hidden = 136, .hc = 4, .embed = 96, .kernel = 4, .ngram = 3, .heads_per_ngram = 8}, 16},
        // What the kernels of the released shape take too: 256 columns a warp, rows of 16 bytes.
        PairCase{{.hidden = 256, .hc = 4, .embed = 128, .kernel = 4, .ngram = 3, .heads_per_ngram = 8}, 8},
        PairCase{{.hidden = 768, .hc = 2, .embed = 64, .kernel = 4, .ngram = 2, .heads_per_ngram = 8}, 3}),
    [](const auto& param) { return NameOf(param.param); });

class CudaReleasedTest : public OnGpu<::testing::Test> {
 protected:
  static constexpr uint32_t kTokens = 2112;
  static constexpr uint32_t kCarries = 65;

  static DeviceOptions ReleasedOptions() {
    DeviceOptions options;
    options.carries = kCarries;
    options.max_tokens = kTokens;
    options.arena_slots = 1000;
    options.staging_rows = 2 * 128 * 16;
    return options;
  }
  // The formats take turns.
  static RigFormat Format(uint32_t i) {
    return {.input = i % 2 == 0 ? DType::kF32 : DType::kBf16,
            .output = i % 3 == 0 ? DType::kBf16 : DType::kF32,
            .kind = i % 4 < 2 ? OutputKind::kDelta : OutputKind::kHighway};
  }
  void Judge(const char* what, const PooledError& error) {
    std::cout << what << ": " << error.relative_l2() << "\n";
    EXPECT_LE(error.relative_l2(), kBound) << what;
  }
};

TEST_F(CudaReleasedTest, EveryBatchSizeAndMixedSegmentsAgree) {
  const oracle::Model model = MakeModel({.hidden = 2560, .embed = 2560, .heads_per_ngram = 8}, 141);
  RigPair pair(model, kTokens, 142, ReleasedOptions(), DeviceUnderTest());
  std::mt19937 random(143);
  uint32_t turn = 0;
  // One sequence in steps of T tokens, as many as give 60 and more.
  for (const uint32_t length : {1u, 7u, 64u, 65u, 513u, 2048u}) {
    PooledError delta, highway;
    pair.Reset(0);
    for (uint32_t at = 0; at < 2 * 64u && at + length <= kTokens; at += length) {
      for (const OutputKind kind : {OutputKind::kDelta, OutputKind::kHighway}) {
        if (kind == OutputKind::kHighway && length > 65) continue;
        RigFormat format = Format(turn++);
        format.kind = kind;
        const uint32_t carry = kind == OutputKind::kDelta ? 0 : 1;
        if (at == 0) pair.Reset(carry);
        const PairOutputs out =
            pair.Run({{.carry = carry, .first = at, .count = length}}, format, length <= 65 ? &random : nullptr);
        (kind == OutputKind::kDelta ? delta : highway).Add(out.peer[0], out.base[0]);
      }
    }
    Judge(absl::StrCat("T = ", length, ", delta").c_str(), delta);
    if (highway.values() > 0) Judge(absl::StrCat("T = ", length, ", highway").c_str(), highway);
  }
  // 64 sequences with one token each, again and again; then of random lengths.
  PooledError decode, mixed, rows;
  for (uint32_t c = 0; c < kCarries; ++c) pair.Reset(c);
  std::vector<uint32_t> at(kCarries, 0);
  for (uint32_t round = 0; round < 12; ++round) {
    std::vector<PairStep> steps;
    for (uint32_t c = 0; c < 64; ++c) {
      const uint32_t count = round < 8 ? 1 : random() % 30;
      steps.push_back({.carry = c, .first = c * 16 + at[c], .count = count});
      at[c] += count;
    }
    RigFormat format = Format(round);
    format.kind = OutputKind::kDelta;
    const PairOutputs out = pair.Run(steps, format, round < 8 ? &random : nullptr);
    for (size_t s = 0; s < steps.size(); ++s) (round < 8 ? decode : mixed).Add(out.peer[s], out.base[s]);
  }
  for (uint32_t c = 0; c < 64; ++c) {
    const auto [peer, base] = pair.ReadRows(c);
    rows.Add(peer, base);
  }
  Judge("64 sequences of one token", decode);
  Judge("64 sequences of 0 to 29 tokens", mixed);
  Judge("their conv rows", rows);
}

}  // namespace
}  // namespace pleiad
