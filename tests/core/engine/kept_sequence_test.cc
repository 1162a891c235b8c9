#include "core/engine/kept_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace pleiad {
namespace {

using testing::FailsWith;
using testing::IsOk;

constexpr uint32_t kContext = 2, kStateLen = 9, kEos = 7, kVocab = 1 << 30;
constexpr size_t kChannels = 2;

CarryShape ShapeWith(uint32_t rollback) { return {kContext, kStateLen, rollback, kEos}; }

// A carry whose rows hold the token that wrote them, twice; the device's half done as the plan says.
class TokenCarry {
 public:
  explicit TokenCarry(uint32_t rollback)
      : shape_(ShapeWith(rollback)), state_(shape_), rows_((shape_.ring_rows() + kStateLen) * kChannels, -1.0f) {}

  const CarryState& state() const { return state_; }

  // The rows before a step from `start`, newest first, 0 where they do not exist.
  std::vector<float> RowsBefore(const StepStart& start) const {
    std::vector<float> rows;
    for (uint32_t i = 1; i <= kStateLen; ++i) {
      const size_t row =
          start.kind == StartKind::kUndo ? shape_.ring_rows() + kStateLen - i : RingRow(start.ring.cursor, i);
      rows.push_back(i <= start.ring.valid ? rows_[row * kChannels] : 0);
      EXPECT_EQ(rows_[row * kChannels], rows_[row * kChannels + 1]);
    }
    return rows;
  }

  void Step(const StepStart& start, const std::vector<uint32_t>& tokens) {
    for (uint32_t i = kStateLen; i >= 1 && start.kind == StartKind::kUndo; --i) {
      Copy(shape_.ring_rows() + kStateLen - i, RingRow(start.ring.cursor, i));
    }
    for (uint32_t i = kStateLen; i >= 1 && tokens.size() > shape_.rollback_tokens; --i) {
      Copy(RingRow(start.ring.cursor, i), shape_.ring_rows() + kStateLen - i);
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t row = (start.ring.cursor + i) % shape_.ring_rows() * kChannels;
      rows_[row] = rows_[row + 1] = static_cast<float>(tokens[i]);
    }
    state_.Commit(start, tokens);
  }

  KeptCarry Keep() const { return KeepCarry(state_.Image(), rows_, shape_, kChannels); }
  void Adopt(const KeptCarry& kept) {
    ASSERT_THAT(CheckKept(kept, shape_, kChannels, kVocab), IsOk());
    PlaceRows(kept, shape_, kChannels, absl::MakeSpan(rows_));
    state_.Adopt(kept.state);
  }

 private:
  size_t RingRow(uint32_t cursor, uint32_t back) const {
    return (cursor + 2 * shape_.ring_rows() - back) % shape_.ring_rows();
  }
  void Copy(size_t from, size_t to) {
    for (size_t c = 0; c < kChannels; ++c) rows_[to * kChannels + c] = rows_[from * kChannels + c];
  }

  const CarryShape shape_;
  CarryState state_;
  std::vector<float> rows_;
};

// Random steps and rewinds; `log` are the tokens up to where the carry's ring reaches.
void Walk(TokenCarry& carry, std::vector<uint32_t>& log, std::mt19937& random) {
  for (int round = 0; round < 12; ++round) {
    const CarryState& state = carry.state();
    std::optional<Position> target;
    if (random() % 3 == 0) target = state.last_step_start();
    if (random() % 3 == 0) {
      const uint64_t span = state.position().value() - state.low().value();
      target = Position(state.low().value() + random() % (span + 1));
    }
    const StepStart start = random() % 40 == 0 ? state.Fresh() : *state.At(target);
    std::vector<uint32_t> tokens(random() % (random() % 3 == 0 ? 30 : 4));
    for (uint32_t& token : tokens) token = 1 + static_cast<uint32_t>(random() % 100000);
    if (!tokens.empty() || start.kind != StartKind::kRing) log.resize(start.position.value());
    carry.Step(start, tokens);
    log.insert(log.end(), tokens.begin(), tokens.end());
  }
}

// What a step from `position` finds is what the tokens before it left.
void ExpectPrefix(const TokenCarry& carry, Position position, const std::vector<uint32_t>& log) {
  const std::optional<StepStart> start = carry.state().At(position);
  ASSERT_TRUE(start.has_value()) << position.value();
  std::vector<uint32_t> history(kContext, kEos);
  history.insert(history.end(), log.begin(), log.begin() + static_cast<ptrdiff_t>(position.value()));
  EXPECT_EQ(start->history, TokenHistory(history.end() - kContext, history.end())) << position.value();
  std::vector<float> rows;
  for (uint64_t i = 1; i <= kStateLen; ++i) {
    rows.push_back(i <= position.value() ? static_cast<float>(log[position.value() - i]) : 0.0f);
  }
  EXPECT_EQ(carry.RowsBefore(*start), rows) << position.value();
}

TEST(KeptCarry, EveryReachablePositionIsReachableAgainWithWhatItHad) {
  for (const uint32_t before : {0u, 1u, 3u, 8u}) {
    for (const uint32_t after : {0u, 1u, 3u, 8u, 20u}) {
      std::mt19937 random(100 * before + after);
      for (int round = 0; round < 60; ++round) {
        SCOPED_TRACE(absl::StrCat("rollback ", before, " to ", after, ", round ", round));
        TokenCarry old_carry(before), carry(after);
        std::vector<uint32_t> log;
        Walk(old_carry, log, random);
        const CarryState& was = old_carry.state();
        KeptCarry kept = old_carry.Keep();
        ASSERT_THAT(CheckKept(kept, ShapeWith(before), kChannels, kVocab), IsOk());
        const uint64_t head = kept.state.head.value();
        FitRollback(kept, ShapeWith(after), kChannels);
        carry.Adopt(kept);
        const CarryState& is = carry.state();

        EXPECT_EQ(is.position(), was.position());
        // The end of what can be had: less where the carry stood further back than the new ring reaches.
        const uint64_t end = head - was.position().value() > after ? was.position().value() : head;
        EXPECT_EQ(is.low().value(), std::max(was.low().value(), end > after ? end - after : 0));
        EXPECT_EQ(is.last_step_start().value(), std::min(was.last_step_start().value(), end));
        for (uint64_t position = 0; position < log.size() + 3; ++position) {
          const bool expected = (position >= is.low().value() && position <= is.position().value()) ||
                                Position(position) == is.last_step_start();
          ASSERT_EQ(is.At(Position(position)).has_value(), expected) << position;
          if (expected) ExpectPrefix(carry, Position(position), log);
        }
        // And it goes on as any other does.
        log.resize(end);
        Walk(carry, log, random);
        ExpectPrefix(carry, is.position(), log);
        ExpectPrefix(carry, is.last_step_start(), log);
      }
    }
  }
}

TEST(KeptCarry, KeepsNoRowThatDoesNotExist) {
  TokenCarry carry(4);
  EXPECT_TRUE(carry.Keep().ring_rows.empty());
  carry.Step(*carry.state().At(std::nullopt), {11, 22, 33});
  EXPECT_THAT(carry.Keep().ring_rows, ::testing::ElementsAre(11, 11, 22, 22, 33, 33));
  EXPECT_TRUE(carry.Keep().undo_rows.empty());
  carry.Step(*carry.state().At(std::nullopt), std::vector<uint32_t>(20, 44));
  EXPECT_THAT(carry.Keep().undo_rows, ::testing::ElementsAre(11, 11, 22, 22, 33, 33));
  EXPECT_EQ(carry.Keep().ring_rows.size(), (kStateLen + 4) * kChannels);
}

TEST(KeptCarry, WhatContradictsItselfIsFound) {
  TokenCarry carry(4);
  carry.Step(*carry.state().At(std::nullopt), std::vector<uint32_t>(20, 44));
  const KeptCarry good = carry.Keep();
  ASSERT_THAT(CheckKept(good, ShapeWith(4), kChannels, 1000), IsOk());
  const std::vector<std::pair<std::string, void (*)(KeptCarry&)>> breaks = {
      {"head", [](KeptCarry& c) { c.state.head = Position(kMaxPosition.value() + 1); }},
      {"position", [](KeptCarry& c) { c.state.position = Position(21); }},
      {"low", [](KeptCarry& c) { c.state.low = Position(15); }},
      {"low", [](KeptCarry& c) { c.state.position = Position(15); }},
      {"last_step_start", [](KeptCarry& c) { c.state.last_step_start = Position(21); }},
      {"last_step_start",
       [](KeptCarry& c) {
         c.state.has_undo = false;
         c.state.undo_history.clear();
       }},
      {"ids", [](KeptCarry& c) { c.state.history.pop_back(); }},
      {"ids", [](KeptCarry& c) { c.state.history.push_back(1); }},
      {"undo ids", [](KeptCarry& c) { c.state.undo_history.pop_back(); }},
      {"ring rows", [](KeptCarry& c) { c.state.ring.valid = 14; }},
      {"undo rows", [](KeptCarry& c) { c.state.undo_valid = 10; }},
      {"values", [](KeptCarry& c) { c.ring_rows.pop_back(); }},
      {"values", [](KeptCarry& c) { c.undo_rows.push_back(1); }},
      {"token id", [](KeptCarry& c) { c.state.history.back() = 1000; }},
      {"token id", [](KeptCarry& c) { c.state.undo_history.back() = 1000; }},
  };
  for (const auto& [field, apply] : breaks) {
    KeptCarry bad = good;
    apply(bad);
    EXPECT_THAT(CheckKept(bad, ShapeWith(4), kChannels, 1000), FailsWith(absl::StatusCode::kDataLoss, field));
  }
}

}  // namespace
}  // namespace pleiad
