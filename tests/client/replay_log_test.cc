// A carry that is built again from the log is, at every position it can be moved back to, the carry of the server.
#include "client/internal/replay_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "tests/client/fake_ple_server.h"

namespace pleiad::client::internal {
namespace {

using client::testing::FakeCarry;

constexpr uint32_t kChannels = 4;
constexpr uint32_t kRollback = 8;

LogShape Shape(uint64_t max_bytes) {
  LogShape shape;
  shape.context = 2;
  shape.state_len = client::testing::kStateLen;
  shape.rollback = kRollback;
  shape.channels = kChannels;
  shape.eos = client::testing::kEos;
  shape.max_bytes = max_bytes;
  return shape;
}

// Steps of the toy stage on a server's carry.
struct Server {
  FakeCarry carry{kChannels};

  void Run(uint64_t start, const std::vector<uint32_t>& ids, const std::vector<float>& highway) {
    carry.MoveTo(start, kChannels);
    if (ids.empty()) return;
    carry.last_step_start = start;
    for (size_t t = 0; t < ids.size(); ++t) carry.Push(ids[t], highway.data() + t * kChannels, kChannels);
    if (carry.position > kRollback) carry.low = std::max(carry.low, carry.position - kRollback);
  }
  std::string At(uint64_t position) const {
    FakeCarry moved = carry;
    moved.MoveTo(position, kChannels);
    return moved.Aux(kChannels);
  }
  LayerAux Snapshot() const {
    LayerAux blob;
    blob.position = carry.position;
    blob.aux = carry.Aux(kChannels);
    return blob;
  }
  void Load(const LayerAux& blob) {
    carry = FakeCarry(kChannels);
    std::memcpy(carry.history.data(), blob.aux.data() + 4, 8);
    std::memcpy(carry.rows.data(), blob.aux.data() + 12, std::min(carry.rows.size() * 4, blob.aux.size() - 12));
    carry.base = carry.position = carry.low = carry.last_step_start = *blob.position;
  }
};

Server Built(const ReplayLog::Plan& plan) {
  Server server;
  server.Load(plan.blob);
  uint64_t from = plan.start;
  for (const uint64_t cut : plan.cuts) {
    std::vector<uint32_t> ids;
    std::vector<float> highway;
    for (uint64_t at = from; at < cut; ++at) {
      const LoggedToken& token = *plan.tokens[at - plan.start];
      ids.push_back(token.id);
      const size_t first = highway.size();
      highway.resize(first + kChannels);
      if (!token.row.empty()) std::memcpy(highway.data() + first, token.row.data(), kChannels * 4);
    }
    server.Run(from, ids, highway);
    from = cut;
  }
  return server;
}

class Walk {
 public:
  Walk(uint32_t seed, const LogShape& shape) : random_(seed), shape_(shape), log_(shape) {}

  void Step(uint64_t start, uint32_t count, bool fresh = false) {
    client::Step step;
    std::vector<float> highway;
    for (uint32_t i = 0; i < count; ++i) step.token_ids.push_back(random_() % 1000);
    step.highway.zeros = random_() % 4 == 0;
    for (uint32_t i = 0; i < count * kChannels; ++i) {
      highway.push_back(step.highway.zeros ? 0.0f : static_cast<float>(random_() % 2001) / 1000 - 1);
    }
    if (!step.highway.zeros) {
      step.highway.data = {reinterpret_cast<const std::byte*>(highway.data()), highway.size() * 4};
    }
    if (fresh) server_.carry = FakeCarry(kChannels);
    server_.Run(start, step.token_ids, highway);
    if (count > 0) whole_ = CaptureTokens(shape_, step, 0, count).size() == count;
    log_.Apply({start, fresh, count, server_.carry.low}, CaptureTokens(shape_, step, 0, count));
  }

  // Any step that the server takes.
  void AnyStep(uint32_t longest) {
    const FakeCarry& carry = server_.carry;
    const uint32_t kind = random_() % 16;
    const uint32_t count = 1 + random_() % (random_() % 4 == 0 ? longest : 4);
    if (kind == 0) return Step(0, count, /*fresh=*/true);
    if (kind == 1) return Step(carry.low + random_() % (carry.position - carry.low + 1), 0);
    if (kind < 5) return Step(carry.low + random_() % (carry.position - carry.low + 1), count);
    if (kind == 5 && carry.last_step_start < carry.position) return Step(carry.last_step_start, count);
    Step(carry.position, count);
  }

  void Offer() { log_.Offer(server_.Snapshot()); }

  // How many of the reachable positions differ.
  int Differing() const {
    const FakeCarry& carry = server_.carry;
    const std::optional<ReplayLog::Plan> plan = log_.MakePlan();
    if (!plan.has_value() || log_.end() != carry.position) return 1000;
    const Server built = Built(*plan);
    int differing = built.carry.low > carry.low ? 1 : 0;
    for (uint64_t at = carry.low; at <= carry.position; ++at) differing += built.At(at) == server_.At(at) ? 0 : 1;
    if (carry.last_step_start >= carry.position) return differing;
    if (whole_) {
      const bool reached =
          built.carry.low <= carry.last_step_start || built.carry.last_step_start == carry.last_step_start;
      return differing + (reached && built.At(carry.last_step_start) == server_.At(carry.last_step_start) ? 0 : 1);
    }
    const std::optional<ReplayLog::Plan> before = log_.MakePlan(carry.last_step_start);
    if (!before.has_value()) return 1000;
    return differing + (Built(*before).At(carry.last_step_start) == server_.At(carry.last_step_start) ? 0 : 1);
  }

  std::mt19937& random() { return random_; }
  const ReplayLog& log() const { return log_; }
  Server& server() { return server_; }
  ReplayLog& mutable_log() { return log_; }

 private:
  std::mt19937 random_;
  const LogShape shape_;
  Server server_;
  ReplayLog log_;
  bool whole_ = true;
};

// Cost of a token of the walks.
constexpr uint64_t kToken = sizeof(LoggedToken) + kChannels * 4;

TEST(ReplayLogTest, WhatIsBuiltEqualsTheServersCarryAtEveryPositionThatCanBeReached) {
  for (const uint64_t budget : {uint64_t{0}, 10 * kToken, 40 * kToken, 1000 * kToken}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      Walk walk(seed, Shape(budget));
      for (int i = 0; i < 120; ++i) {
        walk.AnyStep(/*longest=*/60);
        ASSERT_EQ(walk.Differing(), 0) << "budget " << budget << ", seed " << seed << ", step " << i;
        if (walk.random()() % 5 == 0) walk.Offer();
      }
    }
  }
}

TEST(ReplayLogTest, TheComparisonNoticesThatARowTooFewIsKept) {
  LogShape short_of_a_row = Shape(0);
  --short_of_a_row.state_len;
  for (const LogShape& shape : {Shape(0), short_of_a_row}) {
    Walk walk(1, shape);
    for (int i = 0; i < 40; ++i) walk.Step(walk.server().carry.position, 1 + i % 3);
    EXPECT_EQ(walk.log().end() - walk.log().base(), shape.state_len + kRollback);
    EXPECT_EQ(walk.Differing() == 0, shape.state_len == client::testing::kStateLen);
  }
}

TEST(ReplayLogTest, ItsBytesStayBoundedWhateverTheLengthsOfTheSteps) {
  Walk walk(3, Shape(40 * kToken));
  for (int i = 0; i < 300; ++i) {
    walk.AnyStep(/*longest=*/500);
    EXPECT_LE(walk.log().bytes(), 2 * 40 * kToken + (client::testing::kStateLen + kRollback) * kToken);
  }
}

TEST(ReplayLogTest, ASnapshotTakesTheTokensPlaceOnlyWhenNoRewindReachesBehindIt) {
  Walk walk(4, Shape(1000 * kToken));
  walk.Step(0, 20);
  walk.Offer();  // at 20
  EXPECT_EQ(walk.log().base(), 0u);
  for (uint64_t at = 20; at < 28; ++at) {
    walk.Step(at, 1);
    EXPECT_EQ(walk.log().base(), at + 1 < 28 ? 0u : 20u) << at;
  }
  EXPECT_EQ(walk.Differing(), 0);
  walk.Offer();  // at 28, of tokens that a rewind takes back
  walk.Step(25, 20);
  walk.Step(45, 1);
  EXPECT_EQ(walk.log().base(), 20u);
  EXPECT_EQ(walk.Differing(), 0);
}

TEST(ReplayLogTest, AStepTakenBackThatWasNotKeptIsKnownAgainFromASnapshotOrAReset) {
  Walk walk(5, Shape(10 * kToken));
  walk.Step(0, 100);
  walk.Step(100, 100);
  walk.Step(100, 5);  // the start of the last step: what was before it is kept
  EXPECT_EQ(walk.Differing(), 0);
  ReplayLog& log = walk.mutable_log();
  log.Apply({50, false, 1, 50}, std::vector<LoggedToken>(1));  // no server would
  EXPECT_FALSE(log.known());
  EXPECT_FALSE(log.MakePlan().has_value());
  EXPECT_EQ(log.end(), 51u);
  LayerAux blob = walk.server().Snapshot();
  log.Offer(blob);  // at another position
  EXPECT_FALSE(log.known());
  blob.position = 51;
  log.Offer(blob);
  EXPECT_TRUE(log.MakePlan().has_value());
  log.Apply({20, false, 1, 20}, std::vector<LoggedToken>(1));
  EXPECT_FALSE(log.known());
  log.Apply({0, true, 3, 0}, std::vector<LoggedToken>(3));
  EXPECT_TRUE(log.known());
  EXPECT_EQ(log.end(), 3u);
}

TEST(ReplayLogTest, ABlobIsWhereItStarts) {
  Walk walk(6, Shape(1000 * kToken));
  walk.Step(0, 30);
  const LayerAux blob = walk.server().Snapshot();
  walk.mutable_log().Rebase(blob);
  walk.server().Load(blob);
  EXPECT_EQ(walk.log().MakePlan()->blob.aux, blob.aux);
  for (int i = 0; i < 50; ++i) {
    walk.AnyStep(/*longest=*/20);
    ASSERT_EQ(walk.Differing(), 0) << i;
  }
}

}  // namespace
}  // namespace pleiad::client::internal
