// Rows and embeddings to the bit, beside the CPU device: any bytes, from the arena, from staging, through fills.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/stage_rig.h"
#include "tests/support/test_device.h"

namespace pleiad {
namespace {

constexpr uint32_t kSlots = 300, kStaging = 700, kMaxTokens = 128;

struct RowsCase {
  DType dtype;
  uint32_t head_dim;
  uint32_t heads_per_ngram;
};

class CudaRowsTest : public OnGpu<::testing::TestWithParam<RowsCase>> {
 protected:
  std::unique_ptr<Device> Make(testing::TestDevice which) {
    const uint32_t heads = 2 * GetParam().heads_per_ngram;
    const oracle::Model model =
        MakeModel({.embed = heads * GetParam().head_dim, .heads_per_ngram = GetParam().heads_per_ngram}, 181);
    DeviceOptions options;
    options.geometry = GeometryOf(model);
    options.row_dtype = GetParam().dtype;
    options.row_scales = {0.3017f, 17.25f};
    options.arena_slots = kSlots;
    options.staging_rows = kStaging;
    options.carries = 1;
    options.max_tokens = kMaxTokens;
    auto device = testing::CreateTestDevice(options, {WeightsOf(model), WeightsOf(model)}, which);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }
};

bool IsNan(Bf16 value) { return (value & 0x7FFF) > 0x7F80; }

TEST_P(CudaRowsTest, EmbeddingsAreTheCpusToTheBit) {
  const std::unique_ptr<Device> cpu = Make(testing::TestDevice::kCpu), peer = Make(DeviceUnderTest());
  const uint32_t row_bytes = cpu->staging().row_bytes;
  const uint32_t heads = 2 * GetParam().heads_per_ngram;
  ASSERT_EQ(peer->staging().row_bytes, row_bytes);
  ASSERT_EQ(peer->staging().rows, kStaging);
  std::mt19937 random(182);
  const auto random_row = [&](std::byte* to) {
    for (uint32_t i = 0; i < row_bytes; ++i) to[i] = static_cast<std::byte>(random());
  };
  // The table in parts, as a resident one is loaded.
  std::vector<std::byte> table(size_t{kSlots} * row_bytes);
  for (uint32_t slot = 0; slot < kSlots; ++slot) random_row(&table[size_t{slot} * row_bytes]);
  for (uint32_t first = 0; first < kSlots;) {
    const uint32_t count = std::min<uint32_t>(kSlots - first, 1 + random() % 90);
    const auto part = absl::MakeConstSpan(table).subspan(size_t{first} * row_bytes, size_t{count} * row_bytes);
    for (Device* device : {cpu.get(), peer.get()}) ASSERT_TRUE(device->WriteArena(Slot(first), part).ok());
    first += count;
  }
  uint64_t nans = 0, numbers = 0;
  for (uint32_t batch = 0; batch < 60; ++batch) {
    BatchPlan plan;
    plan.layer = LayerOrdinal(batch % 2);
    plan.num_tokens = batch < 4 ? std::vector<uint32_t>{1, 64, 65, kMaxTokens}[batch] : 1 + random() % kMaxTokens;
    std::vector<std::byte> row(row_bytes);
    for (uint32_t i = 0; i < kStaging; i += 1 + random() % 5) {
      random_row(row.data());
      for (Device* device : {cpu.get(), peer.get()}) std::memcpy(device->staging().Row(i), row.data(), row_bytes);
      // As many fills as there are slots at most, each slot once.
      if (random() % 4 == 0 && plan.fills.size() < kSlots) {
        plan.fills.push_back({i, Slot(static_cast<uint32_t>((plan.fills.size() + 37 * batch) % kSlots))});
      }
    }
    for (uint32_t i = 0; i < plan.num_tokens * heads; ++i) {
      plan.gather.push_back(random() % 3 == 0 ? GatherIndex::OfStaging(random() % kStaging)
                                              : GatherIndex::OfSlot(Slot(random() % kSlots)));
    }
    std::vector<std::vector<Bf16>> out;
    for (Device* device : {cpu.get(), peer.get()}) {
      out.emplace_back(size_t{plan.num_tokens} * heads * GetParam().head_dim, Bf16{0x1234});
      plan.embeddings = out.back().data();
      const auto ticket = device->Run(plan);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      ASSERT_TRUE(device->Wait(*ticket).ok());
    }
    for (size_t i = 0; i < out[0].size(); ++i) {
      const bool nan = IsNan(out[0][i]);
      ++(nan ? nans : numbers);
      if (nan && GetParam().dtype == DType::kF8E4M3) {
        ASSERT_TRUE(IsNan(out[1][i])) << "batch " << batch << " value " << i;
      } else {
        ASSERT_EQ(out[1][i], out[0][i]) << "batch " << batch << " value " << i;
      }
    }
  }
  EXPECT_GT(nans, 0u);
  EXPECT_GT(numbers, nans);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaRowsTest,
                         ::testing::Values(RowsCase{DType::kBf16, 160, 8}, RowsCase{DType::kF8E4M3, 160, 8},
                                           RowsCase{DType::kBf16, 1, 1}, RowsCase{DType::kF8E4M3, 1, 2},
                                           RowsCase{DType::kBf16, 5, 3}, RowsCase{DType::kF8E4M3, 5, 3},
                                           RowsCase{DType::kBf16, 10, 2}, RowsCase{DType::kF8E4M3, 12, 2},
                                           RowsCase{DType::kF8E4M3, 24, 8}),
                         [](const auto& param) {
                           return absl::StrCat(param.param.dtype == DType::kBf16 ? "Bf16" : "Fp8", "Dim",
                                               param.param.head_dim, "Heads", 2 * param.param.heads_per_ngram);
                         });

}  // namespace
}  // namespace pleiad
