// Steps whose rows the device finds: the answers are those of an engine that finds them itself, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

constexpr uint32_t kMaxTokens = 400;

class HashedStepsTest : public ::testing::Test {
 protected:
  HashedStepsTest() {
    CheckpointSpec spec;
    spec.geometry = {.hidden_size = 20, .hc_count = 2, .embed_dim = 48, .ngram_size = 4, .heads_per_ngram = 2};
    spec.ple_layer_ids = {2, 3};
    WriteCheckpoint(spec, dir_.path());
    LocalEngineOptions options;
    options.max_tokens = kMaxTokens;
    options.batch_invariant = true;
    options.rows_found_by = RowsFoundBy::kEngine;
    engine_ = std::make_unique<LocalEngine>(dir_.path(), options);
    options.rows_found_by = RowsFoundBy::kDevice;
    options.hashed_batches = hashed_batches_;
    device_ = std::make_unique<LocalEngine>(dir_.path(), options);
  }

  uint32_t channels() const { return engine_->config().geometry.channels(); }
  std::vector<uint32_t> Tokens(uint32_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t& token : tokens) token = random_() % 12 == 0 ? 7 : random_() % 1000;  // 7: EOS
    return tokens;
  }
  std::vector<float> Highway(uint32_t tokens) {
    std::vector<float> highway(size_t{tokens} * channels());
    std::uniform_real_distribution<float> value(-2, 2);
    for (float& f : highway) f = value(random_);
    return highway;
  }
  // The same to both; the ids of `sequences` are the reference's, and their fellows'.
  using Pair = std::pair<SequenceId, SequenceId>;
  Pair Open() { return {engine_->Open(), device_->Open()}; }
  struct Sent {
    std::future<StepAnswer> engine, device;
  };
  Sent Submit(const StepRequest& request, const std::vector<Pair>& sequences, const std::vector<float>& highway) {
    StepRequest of_engine = request, of_device = request;
    for (size_t i = 0; i < sequences.size(); ++i) {
      of_engine.segments[i].sequence = sequences[i].first;
      of_device.segments[i].sequence = sequences[i].second;
    }
    return {engine_->Submit(std::move(of_engine), highway), device_->Submit(std::move(of_device), highway)};
  }
  static void ExpectSame(Sent sent) {
    const StepAnswer want = sent.engine.get(), got = sent.device.get();
    ASSERT_TRUE(want.result.outcome.ok()) << want.result.outcome.message;
    ASSERT_TRUE(got.result.outcome.ok()) << got.result.outcome.message;
    ASSERT_EQ(got.output.size(), want.output.size());
    EXPECT_EQ(std::memcmp(got.output.data(), want.output.data(), got.output.size() * sizeof(float)), 0);
    EXPECT_EQ(got.result.stats.rows.hits, want.result.stats.rows.hits);
    EXPECT_EQ(got.result.stats.rows.misses, 0u);
    ASSERT_EQ(got.result.segments.size(), want.result.segments.size());
    for (size_t i = 0; i < got.result.segments.size(); ++i) {
      EXPECT_EQ(got.result.segments[i].position, want.result.segments[i].position);
    }
  }

  TempDir dir_;
  std::mt19937 random_{17};
  std::shared_ptr<std::atomic<uint64_t>> hashed_batches_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::unique_ptr<LocalEngine> engine_, device_;
};

TEST_F(HashedStepsTest, StepsOfAnyLengthAreTheEngines) {
  const Pair sequence = Open();
  for (const LayerIndex layer : engine_->config().ple_layers) {
    for (const uint32_t count : {1u, 64u, 65u, 3u, 200u, 400u, 66u}) {
      const StepRequest request = OneSegment({}, layer, Tokens(count));
      ExpectSame(Submit(request, {sequence}, Highway(count)));
    }
  }
  if (ChosenTestDevice() == TestDevice::kCpu) {
    EXPECT_EQ(hashed_batches_->load(), 8u) << "65, 200, 400 and 66 tokens, of two layers";
  }
  const auto want = engine_->engine().stats().rows.lookups, got = device_->engine().stats().rows.lookups;
  ASSERT_EQ(got.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(got[layer].hits, want[layer].hits);
    EXPECT_EQ(got[layer].hits, 799u * engine_->config().geometry.heads());
  }
}

TEST_F(HashedStepsTest, ManyAtOnceOfManySequencesAreTheEngines) {
  std::vector<Pair> all;
  for (int i = 0; i < 12; ++i) all.push_back(Open());
  for (int round = 0; round < 20; ++round) {
    std::vector<Sent> sent;
    for (int steps = 0; steps < 5; ++steps) {
      std::shuffle(all.begin(), all.end(), random_);
      StepRequest request;
      request.layer = engine_->config().ple_layers[static_cast<size_t>(round) % 2];
      request.output.kind = OutputKind::kDelta;
      std::vector<Pair> named;
      uint32_t total = 0;
      const size_t segments = 1 + random_() % all.size();
      for (size_t i = 0; i < segments; ++i) {
        StepSegment segment;
        segment.num_tokens = static_cast<uint32_t>(random_() % (random_() % 4 == 0 ? 100 : 4));
        segment.fresh = random_() % 6 == 0;
        if (total + segment.num_tokens > kMaxTokens) break;
        total += segment.num_tokens;
        // One of them leaves nothing behind.
        named.push_back(i == 3 ? Pair() : all[i]);
        if (i == 3) segment.fresh = false;
        request.segments.push_back(segment);
      }
      request.token_ids = Tokens(total);
      const std::vector<float> highway = Highway(total);
      if (random_() % 2 == 0) {
        StepRequest prestage = request;
        prestage.mode = StepMode::kPrestage;
        Sent staged = Submit(prestage, named, {});
        if (random_() % 2 == 0) staged.device.wait();
      }
      sent.push_back(Submit(request, named, highway));
    }
    for (Sent& step : sent) {
      const StepAnswer want = step.engine.get(), got = step.device.get();
      ASSERT_EQ(got.result.outcome.code, want.result.outcome.code) << got.result.outcome.message;
      ASSERT_TRUE(want.result.outcome.ok()) << want.result.outcome.message;
      ASSERT_EQ(got.output.size(), want.output.size());
      EXPECT_EQ(std::memcmp(got.output.data(), want.output.data(), got.output.size() * sizeof(float)), 0);
    }
  }
  if (ChosenTestDevice() == TestDevice::kCpu) {
    EXPECT_GT(hashed_batches_->load(), 20u);
  }
}

// A hint of a segment that the device finds by itself is none.
TEST_F(HashedStepsTest, WhatIsPrestagedAndUsedInPartsIsTheEngines) {
  const LayerIndex layer = engine_->config().ple_layers[0];
  const Pair sequence = Open();
  const uint32_t heads = engine_->config().geometry.heads();
  for (const std::vector<uint32_t>& parts : {std::vector<uint32_t>{200}, {100, 50, 50}, {64}, {10, 54}, {64, 65, 71}}) {
    const uint32_t total = std::accumulate(parts.begin(), parts.end(), 0u);
    const std::vector<uint32_t> tokens = Tokens(total);
    StepRequest prestage = OneSegment({}, layer, tokens);
    prestage.mode = StepMode::kPrestage;
    Sent staged = Submit(prestage, {sequence}, {});
    staged.engine.wait();
    staged.device.wait();
    const bool held = total <= 64;
    EXPECT_EQ(engine_->Get(sequence.first).layers[0].prestaged_tokens, total);
    EXPECT_EQ(device_->Get(sequence.second).layers[0].prestaged_tokens, held ? total : 0);
    uint32_t at = 0;
    for (const uint32_t count : parts) {
      const StepRequest request = OneSegment({}, layer, {tokens.begin() + at, tokens.begin() + at + count});
      Sent sent = Submit(request, {sequence}, Highway(count));
      const StepAnswer want = sent.engine.get(), got = sent.device.get();
      ASSERT_TRUE(want.result.outcome.ok() && got.result.outcome.ok());
      ASSERT_EQ(got.output.size(), want.output.size());
      EXPECT_EQ(std::memcmp(got.output.data(), want.output.data(), got.output.size() * sizeof(float)), 0);
      EXPECT_EQ(want.result.stats.rows.hits, 0u) << "they were asked for before";
      EXPECT_EQ(got.result.stats.rows.hits, held ? 0 : count * heads);
      at += count;
    }
  }
  EXPECT_EQ(engine_->engine().stats().prestage_used, 5u);
  EXPECT_EQ(device_->engine().stats().prestage_used, 2u);
}

// What holds nothing is resolved once for all sequences of a prestage. The reference is told of nothing ahead.
TEST_F(HashedStepsTest, SequencesPrestagedTogetherUseTheirPartsApart) {
  const LayerIndex layer = engine_->config().ple_layers[1];
  const std::vector<uint32_t> lengths = {3, 1, 5, 2};
  std::vector<Pair> all;
  StepRequest prestage;
  prestage.layer = layer;
  prestage.mode = StepMode::kPrestage;
  for (const uint32_t length : lengths) {
    all.push_back(Open());
    prestage.segments.push_back({.sequence = {}, .num_tokens = length, .fresh = false, .position = std::nullopt});
  }
  prestage.token_ids = Tokens(11);
  for (size_t i = 0; i < all.size(); ++i) prestage.segments[i].sequence = all[i].second;
  ASSERT_TRUE(device_->Submit(prestage, {}).get().result.outcome.ok());
  const auto tokens = [&](size_t first, size_t count) {
    const auto from = prestage.token_ids.begin() + static_cast<ptrdiff_t>(first);
    return std::vector<uint32_t>(from, from + static_cast<ptrdiff_t>(count));
  };
  const auto use = [&](size_t sequence, size_t first, size_t count) {
    Sent sent =
        Submit(OneSegment({}, layer, tokens(first, count)), {all[sequence]}, Highway(static_cast<uint32_t>(count)));
    const StepAnswer want = sent.engine.get(), got = sent.device.get();
    ASSERT_TRUE(want.result.outcome.ok() && got.result.outcome.ok());
    ASSERT_EQ(got.output.size(), want.output.size());
    EXPECT_EQ(std::memcmp(got.output.data(), want.output.data(), got.output.size() * sizeof(float)), 0);
    EXPECT_EQ(want.result.stats.rows.hits, count * engine_->config().geometry.heads());
    EXPECT_EQ(got.result.stats.rows.hits, 0u) << "they were asked for before";
  };
  use(2, 4, 2);
  use(0, 0, 3);
  use(2, 6, 1);
  use(3, 9, 2);
  use(1, 3, 1);
  use(2, 7, 2);
  EXPECT_EQ(device_->engine().stats().prestage_used, 4u);
}

// Sequences of one token each, all of them prestaged: their rows are known.
TEST_F(HashedStepsTest, ManyShortPrestagesAreUsedTogether) {
  StepRequest request;
  request.layer = engine_->config().ple_layers[0];
  request.output.kind = OutputKind::kDelta;
  std::vector<Pair> all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(Open());
    request.segments.push_back({.sequence = {}, .num_tokens = 2, .fresh = false, .position = std::nullopt});
  }
  request.token_ids = Tokens(120);
  StepRequest prestage = request;
  prestage.mode = StepMode::kPrestage;
  Sent staged = Submit(prestage, all, {});
  staged.engine.wait();
  staged.device.wait();
  ExpectSame(Submit(request, all, Highway(120)));
  EXPECT_EQ(device_->engine().stats().prestage_used, 60u);
  EXPECT_EQ(hashed_batches_->load(), 0u);
}

}  // namespace
}  // namespace pleiad::testing
