// The whole stage in process against the FP64 oracle: any cutting, any batch, any rewind gives the same result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/core/engine/stage_cases.h"

namespace pleiad::testing {
namespace {

class StageTest : public ::testing::TestWithParam<StageCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, StageTest, ::testing::ValuesIn(StageCases()),
                         [](const auto& shape) { return shape.param.name; });

TEST_P(StageTest, OneStepGivesTheOraclesNumbers) {
  StageFixture fixture(GetParam());
  for (size_t p = 0; p < fixture.layers(); ++p) {
    const StageTrace& trace = fixture.trace(p);
    const SequenceId sequence = fixture.local.Open();
    const StepAnswer answer = fixture.local.Step(sequence, fixture.layer(p), trace.tokens, trace.highway);
    ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
    EXPECT_LE(oracle::RelativeL2(answer.output, trace.rounded.delta), 3e-4);
    EXPECT_LE(oracle::RelativeL2(answer.output, trace.exact.delta), 3e-3);
    const CarryBlob blob = fixture.local.Snapshot(sequence, fixture.layer(p)).layers.at(0);
    EXPECT_EQ(fixture.HistoryOf(blob), oracle::HistoryAt(fixture.model(p).hash, trace.tokens, trace.tokens.size()));
    EXPECT_LE(oracle::RelativeL2(fixture.ConvRowsOf(blob), trace.rounded_rows_at_end), 3e-4);
  }
}

TEST_P(StageTest, RandomCuttingsGiveTheSameResult) {
  StageFixture fixture(GetParam());
  std::mt19937 random(7);
  std::vector<float> outputs, expected;
  const StageTrace& trace = fixture.trace(0);
  const int rounds = 100;
  for (int round = 0; round < rounds; ++round) {
    const SequenceId sequence = fixture.local.Open();
    for (size_t at = 0; at < trace.tokens.size();) {
      const size_t count = std::min<size_t>(trace.tokens.size() - at, 1 + random() % (round % 2 == 0 ? 4 : 24));
      std::future<StepAnswer> prestage;
      if (fixture.cached() && random() % 2 == 0) {
        // Often more or fewer tokens than the step has, now and then other ones.
        const size_t from = random() % 8 == 0 ? 0 : at;
        prestage =
            fixture.PrestageTrace(sequence, 0, from, 1 + random() % std::min<size_t>(trace.tokens.size() - at, 30));
        if (random() % 2 == 0) prestage.wait();
      }
      const StepAnswer answer = fixture.StepTrace(sequence, 0, at, count);
      ASSERT_TRUE(answer.result.outcome.ok());
      outputs.insert(outputs.end(), answer.output.begin(), answer.output.end());
      at += count;
    }
    expected.insert(expected.end(), fixture.whole(0).begin(), fixture.whole(0).end());
    fixture.local.Release(sequence);
  }
  fixture.ExpectSame(outputs, expected);
}

TEST_P(StageTest, RandomBatchesGiveTheSameResult) {
  StageFixture fixture(GetParam());
  std::mt19937 random(11);
  std::vector<float> outputs, expected;
  const StageTrace& trace = fixture.trace(0);
  const size_t channels = fixture.channels();
  for (int round = 0; round < 12; ++round) {
    // Every sequence runs the same trace from its own place; requests name one to all of them.
    const size_t count = 1 + random() % 16;
    std::vector<SequenceId> sequences;
    std::vector<size_t> at(count, 0);
    for (size_t i = 0; i < count; ++i) sequences.push_back(fixture.local.Open());
    struct Sent {
      std::future<StepAnswer> answer;
      std::vector<std::pair<size_t, size_t>> spans;  // of the trace
    };
    std::vector<Sent> sent;
    for (size_t left = count; left > 0;) {
      StepRequest request;
      request.layer = fixture.layer(0);
      request.output.kind = OutputKind::kDelta;
      std::vector<float> highway;
      Sent call;
      for (size_t i = 0; i < count; ++i) {
        if (at[i] >= trace.tokens.size() || random() % 2 == 0) continue;
        const size_t tokens = std::min<size_t>(trace.tokens.size() - at[i], random() % 13);
        request.segments.push_back({sequences[i], static_cast<uint32_t>(tokens), false, std::nullopt});
        request.token_ids.insert(request.token_ids.end(), trace.tokens.begin() + static_cast<ptrdiff_t>(at[i]),
                                 trace.tokens.begin() + static_cast<ptrdiff_t>(at[i] + tokens));
        highway.insert(highway.end(), trace.highway.begin() + static_cast<ptrdiff_t>(at[i] * channels),
                       trace.highway.begin() + static_cast<ptrdiff_t>((at[i] + tokens) * channels));
        call.spans.emplace_back(at[i], tokens);
        at[i] += tokens;
        if (at[i] == trace.tokens.size()) --left;
      }
      if (fixture.cached() && random() % 2 == 0) {
        StepRequest prestage = request;
        prestage.mode = StepMode::kPrestage;
        fixture.local.Submit(std::move(prestage), {});
      }
      call.answer = fixture.local.Submit(std::move(request), std::move(highway));
      sent.push_back(std::move(call));
    }
    for (Sent& call : sent) {
      const StepAnswer answer = call.answer.get();
      ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
      outputs.insert(outputs.end(), answer.output.begin(), answer.output.end());
      for (const auto& [first, tokens] : call.spans) {
        const auto begin = fixture.whole(0).begin() + static_cast<ptrdiff_t>(first * channels);
        expected.insert(expected.end(), begin, begin + static_cast<ptrdiff_t>(tokens * channels));
      }
    }
    for (SequenceId sequence : sequences) fixture.local.Release(sequence);
  }
  fixture.ExpectSame(outputs, expected);
}

TEST_P(StageTest, RandomRewindsContinueFromTheAcceptedPrefix) {
  StageFixture fixture(GetParam());
  std::mt19937 random(13);
  const StageTrace& trace = fixture.trace(0);
  const size_t channels = fixture.channels();
  std::vector<float> outputs;
  std::vector<double> expected;
  std::vector<float> rows;
  std::vector<double> expected_rows;
  for (int round = 0; round < 6; ++round) {
    const SequenceId sequence = fixture.local.Open();
    std::vector<uint32_t> tokens;  // accepted
    std::vector<double> highway;
    for (int step = 0; step < 30; ++step) {
      const GetSequenceResult where = fixture.local.Get(sequence);
      const SequenceLayerState& state = where.layers.at(0);
      std::optional<Position> position;
      if (random() % 3 == 0) {
        position = Position(state.low.value() + random() % (state.position.value() - state.low.value() + 1));
      } else if (random() % 6 == 0) {
        position = state.last_step_start;
      }
      const size_t start = static_cast<size_t>(position.value_or(state.position).value());
      tokens.resize(start);
      highway.resize(start * channels);
      const size_t count = random() % (random() % 5 == 0 ? 30 : 5);
      const size_t from = random() % (trace.tokens.size() - count);
      std::vector<uint32_t> ids(trace.tokens.begin() + static_cast<ptrdiff_t>(from),
                                trace.tokens.begin() + static_cast<ptrdiff_t>(from + count));
      std::vector<float> input(trace.highway.begin() + static_cast<ptrdiff_t>(from * channels),
                               trace.highway.begin() + static_cast<ptrdiff_t>((from + count) * channels));
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      highway.insert(highway.end(), input.begin(), input.end());
      const StepAnswer answer = fixture.local.Step(sequence, fixture.layer(0), ids, input, position);
      ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
      ASSERT_EQ(answer.result.segments.at(0).position.value(), tokens.size());
      const oracle::Trace run = oracle::RunTokens(fixture.model(0), tokens, highway, oracle::KvRounding::kBf16);
      outputs.insert(outputs.end(), answer.output.begin(), answer.output.end());
      expected.insert(expected.end(), run.delta.begin() + static_cast<ptrdiff_t>(start * channels), run.delta.end());
      const CarryBlob blob = fixture.local.Snapshot(sequence, fixture.layer(0)).layers.at(0);
      ASSERT_EQ(fixture.HistoryOf(blob), oracle::HistoryAt(fixture.model(0).hash, tokens, tokens.size()));
      const std::vector<float> got = fixture.ConvRowsOf(blob);
      const std::vector<double> want = oracle::ConvRowsAt(fixture.model(0), run, tokens.size());
      rows.insert(rows.end(), got.begin(), got.end());
      expected_rows.insert(expected_rows.end(), want.begin(), want.end());
    }
    fixture.local.Release(sequence);
  }
  EXPECT_LE(oracle::RelativeL2(outputs, expected), 3e-4);
  EXPECT_LE(oracle::RelativeL2(rows, expected_rows), 3e-4);
}

TEST_P(StageTest, SnapshotRestoreContinuesAsIfNothingHappened) {
  StageFixture fixture(GetParam());
  const StageTrace& trace = fixture.trace(0);
  std::vector<float> outputs, expected;
  for (size_t cut = 0; cut < 30; cut += cut < 12 ? 1 : 7) {
    const SequenceId first = fixture.local.Open();
    if (cut > 0) fixture.StepTrace(first, 0, 0, cut);
    const SnapshotResult snapshot = fixture.local.Snapshot(first, fixture.layer(0));
    fixture.local.Release(first);
    const SequenceId second = fixture.local.Open();
    fixture.StepTrace(second, 0, 3, 5);  // something to be replaced
    ASSERT_TRUE(fixture.local.Restore(second, snapshot.layers).ok());
    EXPECT_EQ(fixture.local.Snapshot(second, fixture.layer(0)).layers.at(0).aux, snapshot.layers.at(0).aux);
    const StepAnswer answer = fixture.StepTrace(second, 0, cut, trace.tokens.size() - cut);
    outputs.insert(outputs.end(), answer.output.begin(), answer.output.end());
    expected.insert(expected.end(), fixture.whole(0).begin() + static_cast<ptrdiff_t>(cut * fixture.channels()),
                    fixture.whole(0).end());
    fixture.local.Release(second);
  }
  fixture.ExpectSame(outputs, expected);
}

}  // namespace
}  // namespace pleiad::testing
