// What --check and the start say of memory, for cached tables.
#include "server/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/rows/cached_row_store.h"
#include "server/check.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/process/child_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using testing::CheckpointSpec;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

constexpr uint64_t kPlenty = uint64_t{1} << 40;
constexpr uint64_t kRows = 256;  // of each table
constexpr uint64_t kHeads = 4, kHeadDim = 8;

class MemoryPlanTest : public ::testing::Test {
 protected:
  const Checkpoint& Open(DType dtype, std::vector<uint32_t> layer_ids = {2}) {
    CheckpointSpec spec;
    spec.row_dtype = dtype;
    spec.ple_layer_ids = std::move(layer_ids);
    spec.rows = kRows;
    dirs_.push_back(std::make_unique<TempDir>());
    WriteCheckpoint(spec, dirs_.back()->path());
    checkpoint_ = *Checkpoint::Open({.dir = dirs_.back()->path(), .eos_token_id = std::nullopt});
    return *checkpoint_;
  }
  static ServerFlags Flags() {
    ServerFlags flags;
    flags.table = TableFlag::kCached;
    flags.cache_bytes = 1600;
    flags.max_tokens = 32;
    flags.max_sequences = 10;
    return flags;
  }
  static MemoryPlan Plan(const Checkpoint& checkpoint, const ServerFlags& flags, uint64_t available = kPlenty) {
    return PlanOn({.host = available, .gpu = std::nullopt}, checkpoint, flags);
  }
  static MemoryPlan PlanOn(const AvailableMemory& available, const Checkpoint& checkpoint, const ServerFlags& flags) {
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(checkpoint, flags, available);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or(MemoryPlan());
  }

  std::vector<std::unique_ptr<TempDir>> dirs_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(MemoryPlanTest, SizesOfACachedTableFollowItsRowsAndAddUp) {
  struct Case {
    DType dtype;
    uint64_t arena_row, staging_row;  // an F32 row is staged as read and as kept
  };
  for (const Case& c : {Case{DType::kBf16, 16, 16}, Case{DType::kF8E4M3, 8, 8}, Case{DType::kF32, 16, 16 + 32}}) {
    const Checkpoint& checkpoint = Open(c.dtype);
    const MemoryPlan plan = Plan(checkpoint, Flags());
    EXPECT_EQ(plan.table, TableMode::kCached);
    EXPECT_EQ(plan.slots, 1600 / c.arena_row);
    EXPECT_EQ(plan.arena, 1600u);
    EXPECT_EQ(plan.staging_rows, 2 * 32 * kHeads);
    EXPECT_EQ(plan.staging, plan.staging_rows * c.staging_row);
    const TableLayout* table = &checkpoint.layers()[0].table;
    EXPECT_EQ(plan.row_maps, CachedRowStoreBytes({&table, 1}, plan.slots, plan.staging_rows));
    EXPECT_GE(plan.row_maps, 4 * kRows);
    EXPECT_EQ(plan.host(), plan.arena + plan.staging + plan.row_maps + plan.carries + plan.weights + plan.scratch);
    EXPECT_GT(plan.carries * plan.weights * plan.scratch, 0u);
  }
}

TEST_F(MemoryPlanTest, TheCacheIsAQuarterOfTheMemoryUnlessNamedAndNoLargerThanTheTables) {
  const Checkpoint& two = Open(DType::kBf16, {2, 4});
  ServerFlags flags = Flags();
  flags.cache_bytes.reset();
  const MemoryPlan all = Plan(two, flags);
  EXPECT_EQ(all.slots, 2 * kRows);
  EXPECT_EQ(all.arena, 2 * kRows * kHeadDim * 2);
  const uint64_t least = all.host() - all.arena;
  // Memory for everything else and a bit; a quarter of it is more than the tables.
  EXPECT_EQ(Plan(two, flags, 2 * all.host()).slots, 2 * kRows);
  flags.cache_bytes = 15;  // of a row's 16
  EXPECT_EQ(Plan(two, flags, least).slots, 0u);
  flags.cache_bytes = 0;
  EXPECT_EQ(Plan(two, flags, least).arena, 0u);
  flags.cache_bytes = ~uint64_t{0};
  EXPECT_EQ(Plan(two, flags).slots, 2 * kRows);
}

TEST_F(MemoryPlanTest, TheDefaultCacheTakesAQuarterOfWhatIsAvailable) {
  CheckpointSpec spec;
  spec.rows = 60'000;
  const TempDir dir;
  WriteCheckpoint(spec, dir.path());
  const std::unique_ptr<Checkpoint> checkpoint = *Checkpoint::Open({.dir = dir.path(), .eos_token_id = std::nullopt});
  ServerFlags flags = Flags();
  flags.cache_bytes.reset();
  flags.max_sequences = 1;
  EXPECT_EQ(Plan(*checkpoint, flags, 1'600'000).slots, 1'600'000u / 4 / 16);
}

TEST_F(MemoryPlanTest, TooLittleMemoryIsRefusedNamingSizesAndFlags) {
  const Checkpoint& checkpoint = Open(DType::kBf16);
  const uint64_t total = Plan(checkpoint, Flags()).host();
  EXPECT_EQ(Plan(checkpoint, Flags(), total).host(), total);
  const absl::Status refused = PlanMemory(checkpoint, Flags(), {.host = total - 1, .gpu = std::nullopt}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* text : {"row cache ", " (100 slots)", "staging ", " (256 rows)", "row maps ", "carries ", "weights ",
                           "together ", "are available", "--max-sequences", "--max-tokens", "--cache-bytes"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
  }
}

TEST_F(MemoryPlanTest, DescribesACachedTableByItsPartsAndAResidentOneByItsSize) {
  const Checkpoint& checkpoint = Open(DType::kBf16);
  ServerFlags flags = Flags();
  EXPECT_THAT(Describe(Plan(checkpoint, flags)),
              AllOf(HasSubstr("row cache "), HasSubstr("staging "), HasSubstr("row maps "), Not(HasSubstr("table "))));
  flags.table = TableFlag::kResident;
  EXPECT_THAT(Describe(Plan(checkpoint, flags)), AllOf(HasSubstr("table "), Not(HasSubstr("row cache"))));
}

// The carries, dense weights and scratch of a batch lie where the stage runs; the tensors of a batch on both sides.
TEST_F(MemoryPlanTest, AGpuHoldsWhatTheStageReadsAndTheHostTheRest) {
  const Checkpoint& checkpoint = Open(DType::kBf16);
  const MemoryPlan cpu = Plan(checkpoint, Flags());
  const MemoryPlan plan = PlanOn({.host = kPlenty, .gpu = kPlenty}, checkpoint, Flags());
  EXPECT_EQ(plan.slots, cpu.slots);
  EXPECT_EQ(plan.staging_twin, plan.staging_rows * 16u);
  EXPECT_EQ(plan.tensors, 2u * 32 * checkpoint.config().geometry.channels() * 4);
  EXPECT_EQ(plan.gpu(), cpu.arena + plan.staging_twin + cpu.carries + cpu.weights + plan.scratch + plan.tensors);
  EXPECT_EQ(plan.host(), cpu.staging + cpu.row_maps + plan.tensors);
  EXPECT_EQ(cpu.gpu(), 0u);
  // Rows that are kept in another form than they are read in are staged twice on the host alone.
  const Checkpoint& wide = Open(DType::kF32);
  EXPECT_EQ(PlanOn({.host = kPlenty, .gpu = kPlenty}, wide, Flags()).staging_twin, plan.staging_twin);
}

TEST_F(MemoryPlanTest, OnAGpuTableAndCacheFollowFromItsOwnMemory) {
  CheckpointSpec spec;
  spec.rows = 1'700'000;  // of 16 bytes
  spec.row_values = testing::RowValues::kLabelled;
  const TempDir dir;
  WriteCheckpoint(spec, dir.path());
  const std::unique_ptr<Checkpoint> checkpoint = *Checkpoint::Open({.dir = dir.path(), .eos_token_id = std::nullopt});
  ServerFlags flags = Flags();
  flags.max_sequences = 1;
  flags.cache_bytes.reset();
  flags.table = TableFlag::kAuto;
  // Less than the table needs on the host, more than it needs on the GPU; and the other way round.
  const MemoryPlan large = PlanOn({.host = 1'000'000, .gpu = kPlenty}, *checkpoint, flags);
  EXPECT_EQ(large.table, TableMode::kResident);
  EXPECT_EQ(large.arena, 1'700'000u * 16);
  EXPECT_EQ(large.staging + large.staging_twin + large.row_maps, 0u);
  const uint64_t gpu = 2 * large.arena - 1;
  const MemoryPlan small = PlanOn({.host = kPlenty, .gpu = gpu}, *checkpoint, flags);
  EXPECT_EQ(small.table, TableMode::kCached);
  EXPECT_EQ(small.slots, gpu / 4 / 16);
}

TEST_F(MemoryPlanTest, EitherMemoryOfAGpusHostCanBeTooLittle) {
  const Checkpoint& checkpoint = Open(DType::kBf16);
  const MemoryPlan plan = PlanOn({.host = kPlenty, .gpu = kPlenty}, checkpoint, Flags());
  EXPECT_TRUE(PlanMemory(checkpoint, Flags(), {.host = plan.host(), .gpu = plan.gpu()}).ok());
  const absl::Status gpu = PlanMemory(checkpoint, Flags(), {.host = kPlenty, .gpu = plan.gpu() - 1}).status();
  const absl::Status host = PlanMemory(checkpoint, Flags(), {.host = plan.host() - 1, .gpu = kPlenty}).status();
  EXPECT_THAT(std::string(gpu.message()), HasSubstr("of the GPU are available"));
  EXPECT_THAT(std::string(host.message()), HasSubstr("of the host are available"));
  for (const absl::Status& refused : {gpu, host}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    for (const char* text : {"on the GPU row cache ", " (100 slots)", "tensors ", "on the host staging ", "pinned",
                             "row maps ", "--max-sequences", "--max-tokens", "--cache-bytes", "--device cpu"}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
    }
  }
}

TEST_F(MemoryPlanTest, CheckPrintsThePlanAndExitsWith1WhenItDoesNotFit) {
  Open(DType::kBf16);
  ServerFlags flags = Flags();
  flags.model = dirs_.back()->path();
  flags.device = DeviceFlag::kCpu;
  std::ostringstream out;
  EXPECT_TRUE(Check(flags, out).ok());
  EXPECT_THAT(out.str(), AllOf(HasSubstr("memory plan: row cache "), HasSubstr("(100 slots)"),
                               HasSubstr("\ndevice: cpu (--device cpu)\n"), HasSubstr("\ntable: cached\n"),
                               HasSubstr("files needed:\n")));

  const std::vector<std::string> command = {
      PLEIAD_SERVER_BINARY, "--check", "--model",      flags.model, "--table",  "cached",
      "--cache-bytes",      "1600",    "--max-tokens", "32",        "--device", "cpu"};
  const testing::Finished fits = testing::RunToEnd(command);
  EXPECT_EQ(fits.code, 0) << fits.output;
  EXPECT_THAT(fits.output, HasSubstr("(100 slots)"));
  std::vector<std::string> large = command;
  large.insert(large.end(), {"--max-sequences", "16777216", "--rollback-tokens", "65536"});
  const testing::Finished refused = testing::RunToEnd(large);
  EXPECT_EQ(refused.code, 1) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("RESOURCE_EXHAUSTED: memory: "), HasSubstr("lower --max-sequences")));
}

}  // namespace
}  // namespace pleiad
