#include "tests/core/device/rig_pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace pleiad {

void PooledError::Add(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  values_ += got.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double difference = double{got[i]} - double{want[i]};
    difference_ += difference * difference;
    norm_ += double{want[i]} * double{want[i]};
  }
}

double PooledError::relative_l2() const {
  if (values_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(difference_) / (norm_ > 0 ? std::sqrt(norm_) : 1);
}

RigPair::RigPair(const oracle::Model& model, uint32_t tokens, uint64_t seed, const Side& base, const Side& peer)
    : base_(RandomRig(model, tokens, seed, base.options, base.which)),
      peer_(RandomRig(model, tokens, seed, peer.options, peer.which)),
      extra_(base.options.arena_slots) {
  for (uint32_t i = 0; i < base.options.carries; ++i) {
    base_carries_.push_back(base_.NewCarry());
    peer_carries_.push_back(peer_.NewCarry());
  }
}

void RigPair::Reset(uint32_t carry) {
  base_carries_[carry] = {.slot = base_carries_[carry].slot, .ring = {}, .start = {}};
  peer_carries_[carry] = {.slot = peer_carries_[carry].slot, .ring = {}, .start = {}};
}

void RigPair::Poison() {
  for (const RigCarry& carry : base_carries_) base_.Poison(carry.slot);
  for (const RigCarry& carry : peer_carries_) peer_.Poison(carry.slot);
}

void RigPair::PoisonScratch(uint32_t tokens) {
  for (StageRig* rig : {&base_, &peer_}) {
    const StagingView staging = rig->device().staging();
    std::memset(staging.Row(0), 0xFF, staging.row_bytes);
    const std::vector<float> input(tokens * rig->channels(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> output(input.size());
    BatchPlan plan;
    plan.num_tokens = tokens;
    plan.gather.assign(tokens * rig->model().heads(), GatherIndex::OfStaging(0));
    plan.segments = {{.num_tokens = tokens}};
    TensorPart part;
    part.num_tokens = tokens;
    part.input = reinterpret_cast<const std::byte*>(input.data());
    part.output = reinterpret_cast<std::byte*>(output.data());
    plan.parts = {part};
    const auto ticket = rig->device().Run(plan);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE(rig->device().Wait(*ticket).ok());
    for (const float value : output) ASSERT_TRUE(std::isnan(value));
  }
}

std::vector<RigStep> RigPair::StepsOn(const std::vector<PairStep>& steps, std::vector<RigCarry>& carries) {
  std::vector<RigStep> result;
  for (const PairStep& step : steps) {
    RigStep& on = result.emplace_back();
    if (step.carry) on.carry = &carries.at(*step.carry);
    on.first = step.first;
    on.count = step.count;
    on.back = step.back;
    on.start = step.start;
  }
  return result;
}

void RigPair::Scatter(BatchPlan* plan, std::mt19937& random) {
  const StagingView staging = base_.device().staging();
  uint32_t next_staging = random() % std::max(1u, staging.rows);
  uint32_t staging_left = staging.rows;
  std::set<uint32_t> filled;  // extra slots, by this batch
  for (GatherIndex& index : plan->gather) {
    const uint32_t row = index.row();
    const uint32_t choice = random() % 4;
    if (choice == 0 || staging_left == 0) continue;
    if (choice == 1) {
      // One filled by an earlier batch, or ahead in this one.
      const auto found = std::find(extra_.begin(), extra_.end(), row);
      if (found == extra_.end()) continue;
      index = GatherIndex::OfSlot(Slot(base_.rows() + static_cast<uint32_t>(found - extra_.begin())));
      continue;
    }
    const uint32_t at = next_staging;
    next_staging = (next_staging + 1) % staging.rows;
    --staging_left;
    for (StageRig* rig : {&base_, &peer_}) {
      const absl::Span<const std::byte> bytes = rig->Row(row);
      std::memcpy(rig->device().staging().Row(at), bytes.data(), bytes.size());
    }
    const auto extra = static_cast<uint32_t>(extra_.empty() ? 0 : random() % extra_.size());
    if (choice == 2 || extra_.empty() || !filled.insert(extra).second) {
      index = GatherIndex::OfStaging(at);
      continue;
    }
    // A slot that this batch gathers from already keeps its row.
    const GatherIndex slot = GatherIndex::OfSlot(Slot(base_.rows() + extra));
    if (std::any_of(plan->gather.begin(), plan->gather.end(),
                    [slot](GatherIndex other) { return other.bits() == slot.bits(); })) {
      index = GatherIndex::OfStaging(at);
      continue;
    }
    extra_[extra] = row;
    plan->fills.push_back({at, Slot(base_.rows() + extra)});
    index = slot;
  }
}

PairOutputs RigPair::Run(const std::vector<PairStep>& steps, const RigFormat& format, std::mt19937* rows) {
  RigBatch base = base_.Make(StepsOn(steps, base_carries_), format);
  RigBatch peer = peer_.Make(StepsOn(steps, peer_carries_), format);
  if (rows != nullptr) {
    Scatter(&base.plan, *rows);
    peer.plan.fills = base.plan.fills;
    peer.plan.gather = base.plan.gather;
  }
  PairOutputs outputs;
  outputs.peer = peer_.Finish(peer_.Start(peer), peer);
  outputs.base = base_.Finish(base_.Start(base), base);
  return outputs;
}

std::pair<std::vector<float>, std::vector<float>> RigPair::ReadRows(uint32_t carry) {
  return {peer_.ReadRows(peer_carries_[carry]), base_.ReadRows(base_carries_[carry])};
}

RandomWalk::RandomWalk(uint32_t carries, uint32_t rollback, uint32_t tokens, uint32_t max_tokens, uint64_t seed)
    : rollback_(rollback), tokens_(tokens), max_tokens_(max_tokens), places_(carries), random_(seed) {}

std::vector<PairStep> RandomWalk::Next(RigPair* pair) {
  std::vector<PairStep> steps;
  uint32_t left = max_tokens_;
  uint32_t most = random_() % 3 == 0 ? max_tokens_ : 1 + random_() % 9;  // of a step
  for (uint32_t c = 0; c < places_.size(); ++c) {
    if (random_() % 3 == 0 || left == 0) continue;
    Place& place = places_[c];
    if (place.position == tokens_) {
      pair->Reset(c);
      place = {};
    }
    PairStep step;
    step.carry = c;
    const uint32_t choice = random_() % 4;
    if (choice == 0 && place.position > place.low) {
      step.back = 1 + random_() % (place.position - place.low);
      place.position -= step.back;
    } else if (choice == 1 && pair->carry(c).start_in_undo) {
      step.start = StartAt::kLastStart;
      place.position = place.low = place.last_start;
    }
    const uint32_t longest = std::min({left, most, tokens_ - place.position});
    step.first = place.position;
    step.count = longest == 0 || random_() % 12 == 0 ? 0 : 1 + random_() % longest;
    place.last_start = place.position;
    place.position += step.count;
    if (place.position > rollback_) place.low = std::max(place.low, place.position - rollback_);
    left -= step.count;
    steps.push_back(step);
    if (random_() % 8 == 0 && left > 0) {
      PairStep loose;
      loose.count = 1 + random_() % std::min(left, 12u);
      loose.first = random_() % (tokens_ - loose.count);
      left -= loose.count;
      steps.push_back(loose);
    }
  }
  return steps;
}

RigFormat RandomWalk::NextFormat() {
  RigFormat format;
  format.input = random_() % 2 == 0 ? DType::kF32 : DType::kBf16;
  format.output = random_() % 2 == 0 ? DType::kF32 : DType::kBf16;
  format.kind = random_() % 2 == 0 ? OutputKind::kDelta : OutputKind::kHighway;
  format.zeros = random_() % 8 == 0;
  format.in_place = !format.zeros && format.input == format.output && random_() % 3 == 0;
  format.misalign = random_() % 3 == 0 ? random_() % 16 : 0;
  format.piece_bytes = !format.in_place && random_() % 4 == 0 ? 1 + random_() % 300 : 0;
  return format;
}

}  // namespace pleiad
