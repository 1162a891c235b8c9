// Steps over the toy stage, with seeded tokens and highways.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "client/client.h"

namespace pleiad::client::testing {

// One segment's worth of a step; owns the highway that the step points to.
struct TestStep {
  std::vector<uint32_t> tokens;
  std::vector<float> highway;
  std::optional<uint64_t> position;
  bool fresh = false;

  Step For(const Sequence& sequence, std::optional<uint32_t> layer_index = std::nullopt) const {
    Step step;
    step.layer_index = layer_index;
    step.segments.push_back({&sequence, static_cast<uint32_t>(tokens.size()), fresh, position});
    step.token_ids = tokens;
    step.highway.data = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(highway.data()), highway.size() * 4);
    return step;
  }
};

inline TestStep RandomStep(std::mt19937* rng, uint32_t num_tokens, uint32_t channels = 4) {
  TestStep step;
  for (uint32_t i = 0; i < num_tokens; ++i) step.tokens.push_back((*rng)() % 1000);
  for (uint32_t i = 0; i < num_tokens * channels; ++i) {
    step.highway.push_back(static_cast<float>(static_cast<int>((*rng)() % 2001) - 1000) / 1000.0f);
  }
  return step;
}

}  // namespace pleiad::client::testing
