// The labelled table of the cases, and what a client must see of it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/base/numeric.h"
#include "tests/cases/stack.h"

namespace pleiad::testing {

// The awkward shard set: 16 shards of 16 labelled rows in 3 files, in text order of their names.
inline CheckpointSpec Labelled(DType dtype, float scale = 1.0f) {
  CheckpointSpec spec;
  spec.row_dtype = dtype;
  spec.row_values = RowValues::kLabelled;
  spec.scale = scale;
  spec.shards = 16;
  spec.files = 3;
  return spec;
}

inline std::vector<uint32_t> ManyTokens() {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 250; ++i) tokens.push_back((i * 7919) % 1000);
  return tokens;
}

// Every embedding of the answer is the label of its row id, as `decode` reads it; the ids.
inline std::set<uint64_t> ExpectLabels(const v1::LookupResponse& response, size_t head_dim,
                                       const std::function<float(uint64_t row)>& decode) {
  std::set<uint64_t> seen;
  const std::string& data = response.embeddings().data();
  EXPECT_EQ(data.size(), static_cast<size_t>(response.row_ids_size()) * head_dim * sizeof(Bf16));
  for (size_t i = 0; i < data.size() / sizeof(Bf16); ++i) {
    const uint64_t row = response.row_ids(static_cast<int>(i / head_dim));
    seen.insert(row);
    uint16_t bits = 0;
    std::memcpy(&bits, data.data() + i * sizeof(bits), sizeof(bits));
    const float got = Bf16ToFloat(bits), want = decode(row);
    if (got == want || (std::isnan(got) && std::isnan(want))) continue;
    ADD_FAILURE() << "row " << row << ": " << got;
    break;
  }
  return seen;
}

// All usable rows, each its own label.
inline void ExpectLabels(Stack& stack, const std::function<float(uint64_t row)>& decode) {
  std::set<uint64_t> seen;
  for (uint32_t round = 0; round < 4; ++round) {
    std::vector<uint32_t> tokens = ManyTokens();
    for (uint32_t& token : tokens) token = (token * (round + 1) + round) % 1000;
    seen.merge(ExpectLabels(stack.Lookup(tokens), stack.config().geometry.head_dim(), decode));
  }
  EXPECT_EQ(seen.size(), 152u);
  EXPECT_EQ(*seen.rbegin(), 151u) << "a padding row was named";
}

inline float AsBf16(uint64_t row) { return static_cast<float>(row); }

}  // namespace pleiad::testing
