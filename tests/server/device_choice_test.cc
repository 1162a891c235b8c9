#include "server/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Finds GPU 0 alone, with 60 of 80 GB free.
absl::StatusOr<CudaGpu> OneGpu(uint32_t ordinal) {
  if (ordinal > 0) return absl::NotFoundError("there is 1 GPU");
  return CudaGpu{.name = "Card", .total_bytes = 80'000'000'000, .free_bytes = 60'000'000'000};
}
absl::StatusOr<CudaGpu> NoDriver(uint32_t) { return absl::NotFoundError("no driver"); }

ServerFlags With(DeviceFlag device, uint32_t ordinal = 0) {
  ServerFlags flags;
  flags.device = device;
  flags.cuda_ordinal = ordinal;
  return flags;
}

TEST(DeviceChoiceTest, AutoIsTheFirstGpuWhereThereIsOne) {
  const auto choice = ChooseDevice(With(DeviceFlag::kAuto), OneGpu);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->kind, DeviceKind::kCuda);
  EXPECT_EQ(choice->cuda_ordinal, 0u);
  EXPECT_EQ(choice->name, "cuda:0");
  EXPECT_EQ(choice->memory.gpu, 60'000'000'000u);
  EXPECT_GT(choice->memory.host, 0u);
  EXPECT_THAT(choice->reason, AllOf(HasSubstr("auto"), HasSubstr("Card"), HasSubstr("60.0 GB of 80.0 GB free")));
}

TEST(DeviceChoiceTest, AutoIsTheCpuWhereThereIsNoneAndSaysWhy) {
  const auto choice = ChooseDevice(With(DeviceFlag::kAuto), NoDriver);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->kind, DeviceKind::kCpu);
  EXPECT_EQ(choice->name, "cpu");
  EXPECT_EQ(choice->memory.gpu, std::nullopt);
  EXPECT_THAT(choice->reason, AllOf(HasSubstr("auto"), HasSubstr("no driver")));
}

TEST(DeviceChoiceTest, TheCpuIsTakenWithoutALookAtTheGpus) {
  const auto choice = ChooseDevice(With(DeviceFlag::kCpu), [](uint32_t) -> absl::StatusOr<CudaGpu> {
    ADD_FAILURE();
    return absl::InternalError("asked");
  });
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->kind, DeviceKind::kCpu);
}

TEST(DeviceChoiceTest, AnExplicitGpuIsThatOneOrNone) {
  uint32_t asked = 0;
  const auto third = ChooseDevice(With(DeviceFlag::kCuda, 3), [&asked](uint32_t ordinal) {
    asked = ordinal;
    return OneGpu(0);
  });
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(asked, 3u);
  EXPECT_EQ(third->cuda_ordinal, 3u);
  EXPECT_EQ(third->name, "cuda:3");

  const absl::Status refused = ChooseDevice(With(DeviceFlag::kCuda, 1), OneGpu).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(refused.message(), "--device cuda:1: there is 1 GPU");
}

TEST(DeviceChoiceTest, AThreadSpinsWhereAGpuDoesTheWorkAndACpuCanBeSparedOrAsTheFlagSays) {
  ServerFlags flags;
  EXPECT_EQ(SpinFor(flags, RunCost::kEnqueueing, kSpinCpus), kSpin);
  EXPECT_EQ(SpinFor(flags, RunCost::kEnqueueing, kSpinCpus - 1), absl::ZeroDuration());
  EXPECT_EQ(SpinFor(flags, RunCost::kTheWork, 64), absl::ZeroDuration());
  flags.spin = absl::Milliseconds(2);
  EXPECT_EQ(SpinFor(flags, RunCost::kTheWork, 1), absl::Milliseconds(2));
  flags.spin = absl::ZeroDuration();
  EXPECT_EQ(SpinFor(flags, RunCost::kEnqueueing, 64), absl::ZeroDuration());
}

}  // namespace
}  // namespace pleiad
