// The same steps on two rigs: the base, mostly the CPU device, and its peer, the device under test.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "tests/core/device/stage_rig.h"

namespace pleiad {

// |a - b| / |b| over all that was added. What is NaN on one side alone makes it NaN, which no bound accepts.
class PooledError {
 public:
  void Add(const std::vector<float>& got, const std::vector<float>& want);
  size_t values() const { return values_; }
  double relative_l2() const;

 private:
  size_t values_ = 0;
  double difference_ = 0, norm_ = 0;
};

struct PairStep {
  std::optional<uint32_t> carry;  // absent: kNoCarry
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t back = 0;
  StartAt start = StartAt::kHere;
};

struct PairOutputs {
  std::vector<std::vector<float>> peer, base;
};

class RigPair {
 public:
  // All carries are made; the slots of `options.arena_slots` and all staging rows serve scattered rows.
  RigPair(const oracle::Model& model, uint32_t tokens, uint64_t seed, const DeviceOptions& options,
          testing::TestDevice peer)
      : RigPair(model, tokens, seed, {options, testing::TestDevice::kCpu}, {options, peer}) {}
  // Two sides that may differ in what does not change a plan.
  struct Side {
    DeviceOptions options;
    testing::TestDevice which;
  };
  RigPair(const oracle::Model& model, uint32_t tokens, uint64_t seed, const Side& base, const Side& peer);

  StageRig& base() { return base_; }
  StageRig& peer() { return peer_; }
  const RigCarry& carry(uint32_t i) const { return peer_carries_.at(i); }
  // As if the sequence were new. The rows stay where they are.
  void Reset(uint32_t carry);
  // Ring and undo rows of all carries become NaN.
  void Poison();
  // A batch of `tokens` throw-away tokens runs of which everything is NaN: so is what it leaves in scratch.
  void PoisonScratch(uint32_t tokens);

  // One batch. `rows` not null: rows come from slots, from slots filled ahead of the batch or earlier, and from
  // staging, at random.
  PairOutputs Run(const std::vector<PairStep>& steps, const RigFormat& format, std::mt19937* rows = nullptr);
  // Conv rows of a carry, peer's and base's.
  std::pair<std::vector<float>, std::vector<float>> ReadRows(uint32_t carry);

 private:
  std::vector<RigStep> StepsOn(const std::vector<PairStep>& steps, std::vector<RigCarry>& carries);
  void Scatter(BatchPlan* plan, std::mt19937& random);

  StageRig base_, peer_;
  std::vector<RigCarry> base_carries_, peer_carries_;
  std::vector<std::optional<uint32_t>> extra_;  // [extra slots]: the pool's row that was filled in
};

// A random step of each of some carries, and some without one: moves back, returns to the last start, empty steps.
class RandomWalk {
 public:
  RandomWalk(uint32_t carries, uint32_t rollback, uint32_t tokens, uint32_t max_tokens, uint64_t seed);

  // At most max_tokens together. Carries that came to the end of the pool are Reset.
  std::vector<PairStep> Next(RigPair* pair);
  RigFormat NextFormat();
  std::mt19937& random() { return random_; }

 private:
  struct Place {
    uint32_t position = 0, low = 0, last_start = 0;
  };
  const uint32_t rollback_, tokens_, max_tokens_;
  std::vector<Place> places_;
  std::mt19937 random_;
};

}  // namespace pleiad
