// A real engine on the CPU over a tiny checkpoint, for targets that feed it; made once for the process.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "tests/support/local_engine.h"

namespace pleiad::testing {

// Two PLE layers, N 3, C 16, 40 tokens, 16 sequences, batch-invariant.
LocalEngine& TinyEngine();

inline constexpr uint32_t kTinyMaxTokens = 40;

// Aborts with `what` unless `held`: the fuzzer then keeps the input.
void Require(bool held, const char* what);

// A sequence that goes the same way time and again beside whatever is fed: [12] tokens, one to three a step.
class Bystander {
 public:
  Bystander();

  // Queues its next step. Aborts when an answer is not that of a sequence alone.
  void Begin();
  void Finish();

 private:
  std::vector<float> Part(size_t first, size_t count) const;

  std::vector<uint32_t> tokens_;
  std::vector<float> highway_, expected_;
  SequenceId sequence_;
  size_t at_ = 0, count_ = 0;
  std::future<StepAnswer> answer_;
};

}  // namespace pleiad::testing
