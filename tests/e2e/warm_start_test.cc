// A server that is stopped and started again has its cached rows back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/rows/warm_file.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/log_lines.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/fake_clock.h"
#include "tests/support/rows/scripted_reader.h"

namespace pleiad::testing {
namespace {

constexpr uint64_t kRowBytes = 16;

class WarmStartOfAServer : public ::testing::Test {
 protected:
  WarmStartOfAServer() { WriteCheckpoint({}, model_.path()); }

  std::unique_ptr<InProcessServer> Start(const std::string& model, ReadFault fault = ReadFault::kNone) {
    CacheParts parts;
    parts.wrap_reader = [this, fault](std::unique_ptr<RowReader> inner) {
      auto reader =
          std::make_unique<ScriptedReader>(std::move(inner), [fault](const RowRead&, size_t) { return fault; });
      reader_ = reader.get();
      return reader;
    };
    return std::make_unique<InProcessServer>(
        model,
        [this](ServerFlags& flags) {
          flags.table = TableFlag::kCached;
          flags.cache_bytes = 100 * kRowBytes;
          flags.state_dir = state_.path();
        },
        &clock_, std::move(parts));
  }
  static double Idle(const std::string& page) { return MetricValue(page, "pleiad_arena_slots{state=\"idle\"}"); }
  static double Misses(const InProcessServer& server) {
    return MetricValue(ScrapeMetrics(server.metrics_port()), "pleiad_row_lookups_total{layer=\"1\",result=\"miss\"}");
  }
  void Step(InProcessServer& server) {
    client::Client client = server.Connect();
    std::mt19937 random(1);
    client::Sequence sequence = *client.OpenSequence();
    RunPassage(**client.OpenStream(), sequence, RandomPassage(random, 10, client.model()));
  }
  // Rows of a run that was stopped in order.
  uint32_t RunOnce() {
    const auto server = Start(model_.path());
    Step(*server);
    uint32_t rows = 0;
    EXPECT_TRUE(AwaitMetrics(server->metrics_port(), [&rows](const std::string& page) {
      rows = static_cast<uint32_t>(Idle(page));
      return MetricValue(page, "pleiad_arena_slots{state=\"held\"}") == 0 &&
             MetricValue(page, "pleiad_arena_slots{state=\"arriving\"}") == 0 && rows > 0;
    }));
    return rows;
  }
  // The ids in the file, sorted.
  std::vector<RowId> Kept(const std::string& model_id) {
    const auto rows = LoadWarmRows(state_ / "warm-rows", model_id, {256});
    EXPECT_TRUE(rows.ok()) << rows.status();
    std::vector<RowId> ids = rows.ok() ? rows->front() : std::vector<RowId>();
    std::sort(ids.begin(), ids.end(), [](RowId a, RowId b) { return a.value() < b.value(); });
    return ids;
  }

  TempDir model_, state_;
  FakeClock clock_;
  ScriptedReader* reader_ = nullptr;
};

TEST_F(WarmStartOfAServer, HasItsCachedRowsBack) {
  const uint32_t rows = RunOnce();
  ASSERT_GT(rows, 10u);
  const auto server = Start(model_.path());
  EXPECT_TRUE(AwaitMetrics(server->metrics_port(), [rows](const std::string& page) { return Idle(page) == rows; }));
  EXPECT_EQ(reader_->submitted(), rows) << "each is read once";
  EXPECT_EQ(Misses(*server), 0) << "nobody asked for them yet";
  Step(*server);
  EXPECT_EQ(Misses(*server), 0);
}

TEST_F(WarmStartOfAServer, ADamagedOrForeignFileIsIgnoredWithALine) {
  ASSERT_GT(RunOnce(), 10u);
  const std::string path = state_ / "warm-rows", good = ReadFile(path);
  TempDir other;
  CheckpointSpec spec;
  spec.weight_seed = 2;
  WriteCheckpoint(spec, other.path());
  std::string damaged = good;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  for (const bool foreign : {false, true}) {
    SCOPED_TRACE(foreign);
    WriteFile(path, foreign ? good : damaged);
    LogLines log;
    {
      const auto server = Start(foreign ? other.path() : model_.path());
      log.Await("cached rows of the last run are not read back");
      EXPECT_EQ(reader_->submitted(), 0u);
      Step(*server);
      EXPECT_GT(Misses(*server), 10);
    }
    EXPECT_NE(ReadFile(path), foreign ? good : damaged) << "replaced at the end";
  }
}

// The reads of the warm start are under way and do not end.
TEST_F(WarmStartOfAServer, TheFileSurvivesAnEarlyStop) {
  const uint32_t rows = RunOnce();
  for (int round = 0; round < 2; ++round) {
    std::string model_id;
    std::vector<RowId> before;
    {
      const auto server = Start(model_.path(), round == 0 ? ReadFault::kHold : ReadFault::kNever);
      model_id = server->Connect().model().model_id;
      before = Kept(model_id);
      reader_->AwaitHeld(1);
    }
    EXPECT_EQ(before.size(), rows);
    EXPECT_EQ(Kept(model_id), before);
  }
  const auto server = Start(model_.path());
  EXPECT_TRUE(AwaitMetrics(server->metrics_port(), [rows](const std::string& page) { return Idle(page) == rows; }));
}

}  // namespace
}  // namespace pleiad::testing
