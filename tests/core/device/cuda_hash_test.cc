// Rows that the GPU finds are those the host's hash names: a batch gives the same bits either way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

constexpr uint32_t kTokens = 1500, kVocabulary = 5000, kEos = 7, kFirstSlot = 11;

struct HashCase {
  uint32_t ngram;
  uint32_t heads_per_ngram;
};

class CudaHashTest : public OnGpu<::testing::TestWithParam<HashCase>> {
 protected:
  // Heads of every size from one row to all that the pool has room for, and multipliers of 64 bits.
  NgramHasher MakeHasher(uint64_t rows) {
    const uint32_t heads = (GetParam().ngram - 1) * GetParam().heads_per_ngram;
    HashConstants constants;
    for (uint32_t i = 0; i < GetParam().ngram; ++i) constants.multipliers.push_back(random_() | 1);
    uint64_t left = rows - kFirstSlot - heads;
    for (uint32_t i = 0; i < heads; ++i) {
      const uint64_t size = 1 + (i + 1 == heads ? left : i == 0 ? 0 : left / 3);
      left -= size - 1;
      constants.head_offsets.push_back(constants.usable_rows);
      constants.head_sizes.push_back(size);
      constants.usable_rows += size;
    }
    return NgramHasher(constants, GetParam().ngram, GetParam().heads_per_ngram, kEos);
  }

  std::mt19937_64 random_{191};
};

TEST_P(CudaHashTest, ABatchOfTokensGivesWhatABatchOfPlacesGives) {
  const oracle::Model model =
      MakeModel({.embed = 48, .ngram = GetParam().ngram, .heads_per_ngram = GetParam().heads_per_ngram}, 192);
  const auto rows = static_cast<uint32_t>(kTokens * model.heads());
  const NgramHasher hasher = MakeHasher(rows);
  DeviceOptions options;
  options.max_tokens = kTokens;
  if (!CpuStandsIn()) options.row_hashes.push_back({hasher, Slot(kFirstSlot)});
  StageRig rig = RandomRig(model, kTokens, 193, options, DeviceUnderTest());
  EXPECT_EQ(rig.device().info().hashes_rows, !CpuStandsIn());
  const uint32_t context = hasher.context_len();
  uint64_t cuts = 0;
  for (const uint32_t longest : {1u, 3u, 64u, 65u, 200u, kTokens}) {
    for (int round = 0; round < 6; ++round) {
      std::vector<RigStep> steps;
      std::vector<uint32_t> ids;  // of each segment: history, tokens
      uint32_t total = 0;
      while (total < longest) {
        const auto count = static_cast<uint32_t>(round == 0 ? longest : 1 + random_() % (longest - total));
        steps.push_back({.first = total, .count = count});
        total += count;
        for (uint32_t i = 0; i < context + count; ++i) {
          ids.push_back(random_() % 9 == 0 ? kEos : static_cast<uint32_t>(random_() % kVocabulary));
          cuts += ids.back() == kEos ? 1 : 0;
        }
      }
      RigBatch named = rig.Make(steps);
      named.plan.gather.clear();
      std::vector<HashedTokens> hashed;
      size_t at = 0;
      for (const RigStep& step : steps) {
        hashed.push_back({absl::MakeConstSpan(ids).subspan(at, context),
                          absl::MakeConstSpan(ids).subspan(at + context, step.count)});
        at += context + step.count;
        std::vector<RowId> found(size_t{step.count} * hasher.heads());
        hasher.Hash(hashed.back().history, hashed.back().tokens, absl::MakeSpan(found));
        for (const RowId id : found) {
          named.plan.gather.push_back(GatherIndex::OfSlot(Slot(static_cast<uint32_t>(kFirstSlot + id.value()))));
        }
      }
      const std::vector<float> want = Concat(rig.Finish(rig.Start(named), named));
      if (CpuStandsIn()) continue;
      RigBatch tokens = rig.Make(steps);
      tokens.plan.gather.clear();
      tokens.plan.hashed = hashed;
      // Launches both: a graph adds its padding to the sums of the projection.
      const bool same_path = total > 64;
      // One of another length is under way meanwhile.
      const Ticket before = rig.Start(named);
      const Ticket ticket = rig.Start(tokens);
      const Ticket after = rig.Start(named);
      EXPECT_EQ(Concat(rig.Finish(before, named)), want);
      const std::vector<float> got = Concat(rig.Finish(ticket, tokens));
      EXPECT_EQ(Concat(rig.Finish(after, named)), want);
      ASSERT_EQ(got.size(), want.size());
      if (same_path) {
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << total << " tokens";
      }
      EXPECT_LE(oracle::RelativeL2(got, std::vector<double>(want.begin(), want.end())), 3e-4) << total << " tokens";
      // Another token's rows are seen.
      if (total < 2 || round != 1) continue;
      ids.back() ^= 1;
      RigBatch other = rig.Make(steps);
      other.plan.gather.clear();
      other.plan.hashed = hashed;
      EXPECT_NE(Concat(rig.Finish(rig.Start(other), other)), got) << total << " tokens";
    }
  }
  EXPECT_GT(cuts, 100u);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaHashTest, ::testing::Values(HashCase{3, 8}, HashCase{2, 1}, HashCase{4, 2}),
                         [](const auto& c) {
                           return absl::StrCat("N", c.param.ngram, "Heads", c.param.heads_per_ngram);
                         });

}  // namespace
}  // namespace pleiad
