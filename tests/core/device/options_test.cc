// What the factory and the plan check refuse, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "core/device/plan_check.h"
#include "tests/core/device/stage_rig.h"
#include "tests/support/cpu_device_test.h"
#include "tests/support/test_device.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

DeviceOptions GoodOptions() {
  DeviceOptions options;
  options.geometry = GeometryOf(MakeModel({}, 71));
  options.arena_slots = 100;
  options.staging_rows = 50;
  options.carries = 3;
  options.max_tokens = 16;
  return options;
}

struct OptionsCase {
  const char* field;
  std::function<void(DeviceOptions&)> spoil;
};

TEST(OptionsTest, BadOptionsAreRefusedByName) {
  EXPECT_TRUE(GoodOptions().Validate().ok());
  const OptionsCase cases[] = {
      {"hidden_size", [](auto& o) { o.geometry.hidden_size = 0; }},
      {"hc_count", [](auto& o) { o.geometry.hc_count = 0; }},
      {"hc_count * hidden_size", [](auto& o) { o.geometry.hidden_size = 1u << 31; }},
      {"conv_kernel_size", [](auto& o) { o.geometry.conv_kernel_size = 65; }},
      {"ngram_size", [](auto& o) { o.geometry.ngram_size = 1; }},
      {"heads_per_ngram", [](auto& o) { o.geometry.heads_per_ngram = 0; }},
      {"embed_dim", [](auto& o) { o.geometry.embed_dim = 41; }},
      {"rms_norm_eps", [](auto& o) { o.geometry.rms_norm_eps = std::numeric_limits<float>::quiet_NaN(); }},
      {"row_dtype", [](auto& o) { o.row_dtype = DType::kF32; }},
      {"row_scales.size", [](auto& o) { o.row_dtype = DType::kF8E4M3; }},
      {"row_scales", [](auto& o) { o.row_dtype = DType::kF8E4M3, o.row_scales = {0.0f}; }},
      {"row_scales", [](auto& o) { o.row_dtype = DType::kF8E4M3, o.row_scales = {INFINITY}; }},
      {"arena_slots", [](auto& o) { o.arena_slots = GatherIndex::kLimit; }},
      {"staging_rows", [](auto& o) { o.staging_rows = GatherIndex::kLimit; }},
      {"carries", [](auto& o) { o.carries = 0xFFFFFFFFu; }},
      {"max_tokens", [](auto& o) { o.max_tokens = 0; }},
      {"threads", [](auto& o) { o.threads = 100000; }},
      {"cpu_isa", [](auto& o) { o.cpu_isa = "sse9"; }},
  };
  for (const OptionsCase& c : cases) {
    DeviceOptions options = GoodOptions();
    c.spoil(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(c.field) + " = ")) << status;
  }
}

TEST(OptionsTest, WeightsOfOtherShapesAreRefusedByName) {
  const oracle::Model model = MakeModel({}, 71);
  LayerWeights weights = WeightsOf(model);
  weights.norm_conv.pop_back();
  const auto device = testing::CreateTestDevice(GoodOptions(), {weights});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("weights[0].norm_conv.size = 95: must be 96"));
  EXPECT_EQ(testing::CreateTestDevice(GoodOptions(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OptionsTest, MemoryThatCannotBeHadIsResourceExhausted) {
  DeviceOptions options = GoodOptions();
  options.carries = 0xFFFFFFFEu;
  options.rollback_tokens = 1u << 20;
  const auto device = testing::CreateTestDevice(options, {WeightsOf(MakeModel({}, 71))});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted) << device.status();
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("carry pool"));
}

DeviceOptions HashingOptions() {
  DeviceOptions options = GoodOptions();
  HashConstants constants{.multipliers = {3, 5, 7},
                          .head_sizes = {20, 21, 22, 23},
                          .head_offsets = {0, 20, 41, 63},
                          .usable_rows = 86,
                          .padded_rows = 90};
  options.row_hashes.push_back({NgramHasher(std::move(constants), 3, 2, 1), Slot(14)});
  return options;
}

TEST(OptionsTest, RowHashesThatNameNoRowsOfTheArenaAreRefusedByName) {
  const auto refusal = [](const DeviceOptions& options) {
    return std::string(CheckDevice(options, {WeightsOf(MakeModel({}, 71))}).message());
  };
  EXPECT_EQ(refusal(HashingOptions()), "");
  DeviceOptions options = HashingOptions();
  options.row_hashes[0].first_slot = Slot(15);
  EXPECT_THAT(refusal(options), HasSubstr("row_hashes.first_slot = 15: its rows end at 101: must be <= arena_slots"));
  options = HashingOptions();
  options.row_hashes.push_back(options.row_hashes[0]);
  EXPECT_THAT(refusal(options), HasSubstr("row_hashes.size = 2: must be 1"));
  options = HashingOptions();
  options.row_hashes[0].hasher = NgramHasher(options.row_hashes[0].hasher.constants(), 2, 4, 1);
  EXPECT_THAT(refusal(options), HasSubstr("row_hashes.heads = 4: must be 4, over 2 ids before a token"));
}

using CpuMemoryTest = testing::CpuDeviceTest;

TEST_F(CpuMemoryTest, MemoryIsCounted) {
  StageRig rig = RandomRig(MakeModel({}, 72), 10, 73, {.carries = 3});
  const DeviceMemory& memory = rig.device().info().memory;
  EXPECT_EQ(memory.arena, 10u * 40 * 2);
  EXPECT_EQ(memory.carries, 3u * (9 + 8 + 9) * 96 * 4);
  EXPECT_EQ(memory.weights, (96u + 24) * 40 * 2 + 7u * 96 * 4);
  EXPECT_GE(memory.scratch, 20u * (96 + 24 + 40) * 2);
}

struct PlanCase {
  const char* field;
  std::function<void(BatchPlan&)> spoil;
};

TEST(PlanCheckTest, BadTokensInThePlaceOfAGatherAreRefusedByName) {
  const DeviceOptions options = HashingOptions();
  alignas(16) static std::byte tensor[4 * 96 * 4];
  static const std::vector<uint32_t> kIds = {1, 2, 3, 4, 5};
  BatchPlan good;
  good.num_tokens = 4;
  good.hashed = {{absl::MakeConstSpan(kIds).first(2), absl::MakeConstSpan(kIds).first(1)},
                 {absl::MakeConstSpan(kIds).first(2), absl::MakeConstSpan(kIds).first(3)}};
  good.segments = {{.carry = CarrySlot(2), .num_tokens = 1}, {.carry = CarrySlot(1), .first_token = 1}, {}};
  good.segments[2].first_token = 1;
  good.segments[2].num_tokens = 3;
  good.parts = {TensorPart{.num_tokens = 4, .output = tensor}};
  ASSERT_EQ(CheckPlan(options, 1, TensorMemory::kDevice, good), absl::OkStatus());
  static Bf16 embeddings[4 * 40];
  const PlanCase cases[] = {
      {"gather.size", [](auto& p) { p.gather.assign(16, GatherIndex::OfSlot(Slot(1))); }},
      {"fills.size",
       [](auto& p) {
         p.fills = {{0, Slot(1)}};
       }},
      {"embeddings", [](auto& p) { p.embeddings = embeddings; }},
      {"hashed.size", [](auto& p) { p.hashed.pop_back(); }},
      {"hashed.size", [](auto& p) { p.hashed.push_back(p.hashed[0]); }},
      {"hashed.tokens.size", [](auto& p) { p.hashed[1].tokens.remove_suffix(1); }},
      {"hashed.history.size", [](auto& p) { p.hashed[1].history.remove_suffix(1); }},
  };
  for (const PlanCase& c : cases) {
    BatchPlan plan = good;
    c.spoil(plan);
    const absl::Status status = CheckPlan(options, 1, TensorMemory::kDevice, plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("plan: ") + c.field + " = ")) << status;
  }
  const absl::Status without = CheckPlan(GoodOptions(), 1, TensorMemory::kDevice, good);
  EXPECT_THAT(std::string(without.message()), HasSubstr("plan: hashed.size = 2: must be 0 without row_hashes"));
}

TEST(PlanCheckTest, BadPlansAreRefusedByName) {
  const DeviceOptions options = GoodOptions();
  alignas(16) static std::byte tensor[4 * 96 * 4];
  static const std::vector<TensorPiece> kPieces = {{tensor, 0, 99}, {tensor + 100, 99, 4 * 96 * 4 - 99}};
  static const std::vector<TensorPiece> kShortPieces = {kPieces[0], {tensor, 99, 4 * 96 * 4 - 100}};
  static const std::vector<TensorPiece> kGappedPieces = {kPieces[0], {tensor, 100, 4 * 96 * 4 - 100}};
  BatchPlan good;
  good.num_tokens = 4;
  good.gather.assign(16, GatherIndex::OfSlot(Slot(99)));
  good.fills = {{49, Slot(99)}};
  good.segments = {{.carry = CarrySlot(2), .first_token = 0, .num_tokens = 1}, {.first_token = 1, .num_tokens = 3}};
  good.parts = {TensorPart{.num_tokens = 4, .output = tensor}};
  const auto check = [&options](const BatchPlan& plan) { return CheckPlan(options, 1, TensorMemory::kDevice, plan); };
  ASSERT_TRUE(check(good).ok()) << check(good);
  BatchPlan in_pieces = good;
  in_pieces.parts[0].input_pieces = kPieces;
  ASSERT_TRUE(check(in_pieces).ok()) << check(in_pieces);
  const PlanCase cases[] = {
      {"layer", [](auto& p) { p.layer = LayerOrdinal(1); }},
      {"num_tokens", [](auto& p) { p.num_tokens = 17; }},
      {"gather.size", [](auto& p) { p.gather.pop_back(); }},
      {"gather slot", [](auto& p) { p.gather[3] = GatherIndex::OfSlot(Slot(100)); }},
      {"gather staging row", [](auto& p) { p.gather[3] = GatherIndex::OfStaging(50); }},
      {"fill.slot", [](auto& p) { p.fills[0].slot = Slot(100); }},
      {"fill.staging_row", [](auto& p) { p.fills[0].staging_row = 50; }},
      {"segments.first_token", [](auto& p) { p.segments[1].first_token = 2; }},
      {"segments.num_tokens", [](auto& p) { p.segments[1].num_tokens = 2; }},
      {"parts.num_tokens", [](auto& p) { p.parts[0].num_tokens = 5; }},
      {"segment.num_tokens",
       [](auto& p) {
         p.parts = {TensorPart{.num_tokens = 2, .output = tensor},
                    TensorPart{.first_token = 2, .num_tokens = 2, .output = tensor}};
       }},
      {"parts.output", [](auto& p) { p.parts[0].output = nullptr; }},
      {"parts.dtype", [](auto& p) { p.parts[0].input_dtype = DType::kI64; }},
      {"parts address", [](auto& p) { p.parts[0].memory = TensorMemory::kDevice, ++p.parts[0].output; }},
      {"parts.input_pieces", [](auto& p) { p.parts[0].input_pieces = kShortPieces; }},
      {"parts.input_pieces.offset", [](auto& p) { p.parts[0].input_pieces = kGappedPieces; }},
      {"parts.input_pieces", [](auto& p) { p.parts[0].input = tensor, p.parts[0].input_pieces = kPieces; }},
      {"parts.memory", [](auto& p) { p.parts[0].memory = TensorMemory::kDevice, p.parts[0].input_pieces = kPieces; }},
      {"carry", [](auto& p) { p.segments[0].carry = CarrySlot(3); }},
      {"ring.cursor", [](auto& p) { p.segments[0].ring.cursor = 17; }},
      {"ring.valid", [](auto& p) { p.segments[0].ring.valid = 18; }},
  };
  for (const PlanCase& c : cases) {
    BatchPlan plan = good;
    c.spoil(plan);
    const absl::Status status = check(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("plan: ") + c.field + " = ")) << status;
  }
}

TEST(PlanCheckTest, ALongStepMustSetItsRowsAside) {
  BatchPlan plan;
  plan.num_tokens = 9;
  plan.gather.assign(36, GatherIndex::OfSlot(Slot(0)));
  plan.segments = {{.carry = CarrySlot(0), .num_tokens = 9}};
  std::vector<std::byte> tensor(9 * 96 * 4);
  plan.parts = {TensorPart{.num_tokens = 9, .output = tensor.data()}};
  EXPECT_FALSE(CheckPlan(GoodOptions(), 1, TensorMemory::kHost, plan).ok());
  plan.segments[0].ring_to_undo = true;
  EXPECT_TRUE(CheckPlan(GoodOptions(), 1, TensorMemory::kHost, plan).ok());
}

TEST(PlanCheckTest, TensorsInDeviceMemoryAreForDevicesThatReadIt) {
  alignas(16) std::byte tensor[96 * 4];
  BatchPlan plan;
  plan.num_tokens = 1;
  plan.gather.assign(4, GatherIndex::OfSlot(Slot(0)));
  plan.segments = {{.num_tokens = 1}};
  for (const TensorMemory memory : {TensorMemory::kDevice, TensorMemory::kPinned}) {
    plan.parts = {TensorPart{.num_tokens = 1, .memory = memory, .output = tensor}};
    EXPECT_TRUE(CheckPlan(GoodOptions(), 1, TensorMemory::kDevice, plan).ok());
    const absl::Status refused = CheckPlan(GoodOptions(), 1, TensorMemory::kHost, plan);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("plan: parts.memory = "));
  }
}

TEST(PlanCheckTest, ABadPlanLosesTheDevice) {
  StageRig rig = RandomRig(MakeModel({}, 72), 10, 73);
  BatchPlan plan;
  plan.num_tokens = 1;
  EXPECT_EQ(rig.device().Run(plan).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rig.device().Run({}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rig.device().Wait(Ticket(0)).code(), absl::StatusCode::kInternal);
  std::vector<float> rows(9 * 96);
  EXPECT_EQ(rig.device().ReadCarry({CarrySlot(0), {}, rows.data()}).status().code(), absl::StatusCode::kInternal);
}

TEST(PlanCheckTest, AnEmptyPlanIsDone) {
  StageRig rig = RandomRig(MakeModel({}, 72), 10, 73);
  EXPECT_TRUE(rig.device().Wait(Ticket(0)).ok());
  const auto ticket = rig.device().Run({});
  ASSERT_TRUE(ticket.ok());
  EXPECT_TRUE(rig.device().Wait(*ticket).ok());
}

}  // namespace
}  // namespace pleiad
