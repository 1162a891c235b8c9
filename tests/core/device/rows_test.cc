// Arena, staging, fills and the gather: a labelled table, so that any mapping error shows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/core/device/stage_rig.h"
#include "tests/oracle/numbers.h"
#include "tests/support/test_device.h"

namespace pleiad {
namespace {

constexpr uint32_t kRows = 256;
constexpr uint32_t kHeadDim = 10;
constexpr uint32_t kHeads = 4;

// Every element of row r is the number r (BF16) or the byte r (FP8).
std::vector<std::byte> LabelledRow(DType dtype, uint32_t r) {
  std::vector<std::byte> row(kHeadDim * ByteSize(dtype));
  for (uint32_t i = 0; i < kHeadDim; ++i) {
    if (dtype == DType::kBf16) {
      const uint16_t bits = oracle::Bf16Bits(r);
      std::memcpy(&row[2 * i], &bits, sizeof(bits));
    } else {
      row[i] = static_cast<std::byte>(r);
    }
  }
  return row;
}

std::unique_ptr<Device> MakeDevice(DType dtype, std::vector<float> scales = {}, uint32_t arena_slots = kRows) {
  const oracle::Model model = MakeModel({.embed = kHeads * kHeadDim}, 41);
  DeviceOptions options;
  options.geometry = GeometryOf(model);
  options.row_dtype = dtype;
  options.row_scales = std::move(scales);
  options.arena_slots = arena_slots;
  options.staging_rows = kRows;
  options.carries = 1;
  options.max_tokens = kRows;
  options.threads = 3;
  auto device = testing::CreateTestDevice(options, {WeightsOf(model), WeightsOf(model)});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// Gathers whole tokens; returns one BF16 per gathered row, having seen that all elements of a row agree.
std::vector<uint16_t> Gather(Device& device, const std::vector<GatherIndex>& gather, std::vector<Fill> fills = {},
                             LayerOrdinal layer = LayerOrdinal(0)) {
  BatchPlan plan;
  plan.layer = layer;
  plan.gather = gather;
  plan.fills = std::move(fills);
  plan.num_tokens = static_cast<uint32_t>(gather.size() / kHeads);
  std::vector<Bf16> out(gather.size() * kHeadDim, 0xBEEF);
  plan.embeddings = out.data();
  const auto ticket = device.Run(plan);
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(device.Wait(*ticket).ok());
  std::vector<uint16_t> labels;
  for (size_t i = 0; i < gather.size(); ++i) {
    for (uint32_t j = 1; j < kHeadDim; ++j) EXPECT_EQ(out[i * kHeadDim + j], out[i * kHeadDim]);
    labels.push_back(out[i * kHeadDim]);
  }
  return labels;
}

void WriteAll(Device& device, DType dtype) {
  std::vector<std::byte> rows;
  for (uint32_t r = 0; r < kRows; ++r) {
    const std::vector<std::byte> row = LabelledRow(dtype, r);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(device.WriteArena(Slot(0), rows).ok());
}

// B05
TEST(RowsTest, RowStrideFollowsTheFormat) {
  const std::vector<uint32_t> asked = {0, 1, 100, 127, 128, 151, 255, 0};
  std::vector<GatherIndex> gather;
  for (uint32_t r : asked) gather.push_back(GatherIndex::OfSlot(Slot(r)));
  auto bf16 = MakeDevice(DType::kBf16);
  WriteAll(*bf16, DType::kBf16);
  const std::vector<uint16_t> labels = Gather(*bf16, gather);
  auto fp8 = MakeDevice(DType::kF8E4M3, {1, 1});
  WriteAll(*fp8, DType::kF8E4M3);
  const std::vector<uint16_t> codes = Gather(*fp8, gather);
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(oracle::Bf16Value(labels[i]), asked[i]);
    const double value = oracle::E4m3Value(static_cast<uint8_t>(asked[i]));
    if (std::isnan(value)) continue;
    EXPECT_EQ(oracle::Bf16Value(codes[i]), value);
  }
}

// B06 and B07: all codes, from the arena and from staging, a scale for each layer, one rounding.
TEST(RowsTest, AllFp8CodesAreExactOnEveryPath) {
  const std::vector<float> scales = {0.5f, 0.3017f};
  auto device = MakeDevice(DType::kF8E4M3, scales);
  WriteAll(*device, DType::kF8E4M3);
  std::vector<GatherIndex> slots;
  std::vector<GatherIndex> staged;
  for (uint32_t r = 0; r < kRows; ++r) {
    const std::vector<std::byte> row = LabelledRow(DType::kF8E4M3, r);
    std::memcpy(device->staging().Row(r), row.data(), row.size());
    slots.push_back(GatherIndex::OfSlot(Slot(r)));
    staged.push_back(GatherIndex::OfStaging(r));
  }
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const std::vector<uint16_t> out = Gather(*device, slots, {}, LayerOrdinal(layer));
    EXPECT_EQ(Gather(*device, staged, {}, LayerOrdinal(layer)), out);
    for (uint32_t code = 0; code < 256; ++code) {
      const double value = oracle::E4m3Value(static_cast<uint8_t>(code));
      if (std::isnan(value)) {
        EXPECT_TRUE(code == 0x7F || code == 0xFF);
        EXPECT_TRUE(std::isnan(oracle::Bf16Value(out[code]))) << code;
      } else {
        EXPECT_EQ(out[code], oracle::Bf16Bits(oracle::RoundToBf16(value * scales[layer]))) << code;
      }
    }
  }
}

TEST(RowsTest, Fp8KnownValues) {
  auto device = MakeDevice(DType::kF8E4M3, {1, 1});
  WriteAll(*device, DType::kF8E4M3);
  std::vector<GatherIndex> gather;
  for (uint32_t code : {0x00, 0x80, 0x01, 0x07, 0x08, 0x7E, 0xFE, 0x81}) {
    gather.push_back(GatherIndex::OfSlot(Slot(code)));
  }
  const std::vector<uint16_t> out = Gather(*device, gather);
  const std::vector<double> expected = {0.0, -0.0, 0.001953125, 0.013671875, 0.015625, 448, -448, -0.001953125};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(out[i], oracle::Bf16Bits(expected[i])) << i;
}

TEST(RowsTest, AFillIsSeenByTheGatherBehindIt) {
  auto device = MakeDevice(DType::kBf16, {}, 8);
  for (uint32_t r = 0; r < kRows; ++r) {
    const std::vector<std::byte> row = LabelledRow(DType::kBf16, r);
    std::memcpy(device->staging().Row(r), row.data(), row.size());
  }
  // The slots are reused batch after batch; a row without a slot comes from staging.
  for (uint32_t round = 0; round < 20; ++round) {
    std::vector<Fill> fills;
    std::vector<GatherIndex> gather;
    std::vector<uint16_t> expected;
    for (uint32_t slot = 0; slot < 7; ++slot) {
      const uint32_t row = (round * 31 + slot * 7) % kRows;
      fills.push_back({row, Slot(slot)});
      gather.push_back(GatherIndex::OfSlot(Slot(slot)));
      expected.push_back(oracle::Bf16Bits(row));
    }
    const uint32_t bypass = (round * 13 + 5) % kRows;
    gather.push_back(GatherIndex::OfStaging(bypass));
    expected.push_back(oracle::Bf16Bits(bypass));
    EXPECT_EQ(Gather(*device, gather, fills), expected) << round;
  }
}

TEST(RowsTest, AnArenaOfNoRowsServesFromStaging) {
  auto device = MakeDevice(DType::kBf16, {}, 0);
  const std::vector<std::byte> row = LabelledRow(DType::kBf16, 77);
  std::memcpy(device->staging().Row(3), row.data(), row.size());
  EXPECT_EQ(Gather(*device, std::vector<GatherIndex>(kHeads, GatherIndex::OfStaging(3))),
            std::vector<uint16_t>(kHeads, oracle::Bf16Bits(77)));
}

TEST(RowsTest, FillsMayGoOutByThemselves) {
  auto device = MakeDevice(DType::kBf16);
  const std::vector<std::byte> row = LabelledRow(DType::kBf16, 99);
  std::memcpy(device->staging().Row(0), row.data(), row.size());
  BatchPlan fills;
  fills.fills = {{0, Slot(200)}};
  ASSERT_TRUE(device->Run(fills).ok());
  EXPECT_EQ(Gather(*device, std::vector<GatherIndex>(kHeads, GatherIndex::OfSlot(Slot(200)))),
            std::vector<uint16_t>(kHeads, oracle::Bf16Bits(99)));
}

TEST(RowsTest, WritesPastTheArenaAreRefused) {
  auto device = MakeDevice(DType::kBf16);
  const std::vector<std::byte> row = LabelledRow(DType::kBf16, 1);
  EXPECT_TRUE(device->WriteArena(Slot(kRows - 1), row).ok());
  EXPECT_EQ(device->WriteArena(Slot(kRows), row).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(device->WriteArena(Slot(0), absl::MakeConstSpan(row).subspan(1)).code(),
            absl::StatusCode::kInvalidArgument);
}

// A row of NaN codes reaches the output of its own token and no other's.
TEST(RowsTest, NanRowsPropagate) {
  auto device = MakeDevice(DType::kF8E4M3, {1, 1});
  WriteAll(*device, DType::kF8E4M3);
  BatchPlan plan;
  plan.num_tokens = 2;
  plan.gather.assign(2 * kHeads, GatherIndex::OfSlot(Slot(0x38)));
  plan.gather[1] = GatherIndex::OfSlot(Slot(0x7F));
  plan.segments = {{.first_token = 0, .num_tokens = 1}, {.first_token = 1, .num_tokens = 1}};
  std::vector<float> out(2 * 96);
  TensorPart part;
  part.num_tokens = 2;
  part.output = reinterpret_cast<std::byte*>(out.data());
  plan.parts = {part};
  const auto ticket = device->Run(plan);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  ASSERT_TRUE(device->Wait(*ticket).ok());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i < 96) << i;
}

}  // namespace
}  // namespace pleiad
