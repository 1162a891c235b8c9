#include "server/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/table_mode.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

TEST(Limits, FollowTheFormulaOfTheWire) {
  ServerFlags flags;
  const auto limits = ComputeLimits(flags, 10240);
  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->max_message_bytes, 8192ull * (4 * 10240 + 16) + 65536);
  EXPECT_EQ(limits->receive_bytes, static_cast<int>(2 * limits->max_message_bytes));
  EXPECT_EQ(limits->inflight_bytes, 4 * limits->max_message_bytes);
  flags.max_inflight_bytes = 1000;
  EXPECT_EQ(ComputeLimits(flags, 10240)->inflight_bytes, 1000u);
  // Arriving messages fit that much too, but the largest one always, and connections.
  EXPECT_EQ(limits->quota_bytes, limits->inflight_bytes);
  EXPECT_EQ(ComputeLimits(flags, 10240)->quota_bytes, 2 * limits->max_message_bytes);
  flags.max_tokens = 1;
  EXPECT_EQ(ComputeLimits(flags, 8)->quota_bytes, 32u << 20);
}

TEST(Limits, AMessageOf2GiBIsRefusedNamingTheFlag) {
  ServerFlags flags;
  flags.max_tokens = 52'406;  // the most that stays below 2^31 at 10240 channels
  const auto most = ComputeLimits(flags, 10240);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_LT(most->max_message_bytes, 1ull << 31);
  EXPECT_EQ(most->receive_bytes, 2147483647);
  ++flags.max_tokens;
  const auto refused = ComputeLimits(flags, 10240);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("--max-tokens 52407"));
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 52406"));
}

TEST(Table, AutoIsResidentUpToHalfOfTheFreeMemory) {
  EXPECT_EQ(DecideTable(TableFlag::kAuto, 50, 100).value(), TableMode::kResident);
  EXPECT_EQ(DecideTable(TableFlag::kAuto, 51, 100).value(), TableMode::kCached);
  EXPECT_EQ(DecideTable(TableFlag::kCached, 50, 100).value(), TableMode::kCached);
}

TEST(Table, ResidentIsRefusedOnlyWhenItCannotFit) {
  EXPECT_EQ(DecideTable(TableFlag::kResident, 100, 100).value(), TableMode::kResident);
  const auto refused = DecideTable(TableFlag::kResident, 101'000'000'000, 100'000'000'000);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* text : {"101.0 GB", "100.0 GB", "--table cached"}) {
    EXPECT_THAT(refused.status().message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace pleiad
