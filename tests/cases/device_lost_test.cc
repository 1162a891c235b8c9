// A device that fails while it serves: nobody is left without an answer, health tells, the exit code is 3.
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/cases/stack.h"
#include "tests/support/failing_device.h"

namespace pleiad::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;

class DeviceLostTest : public ::testing::TestWithParam<DeviceCall> {
 protected:
  DeviceLostTest()
      : stack_({.wrap_device = [this](std::unique_ptr<Device> inner) {
          return std::make_unique<FailingDevice>(std::move(inner), fault_);
        }}) {}

  std::shared_ptr<DeviceFault> fault_ = std::make_shared<DeviceFault>();
  Stack stack_;
};

TEST_P(DeviceLostTest, StepsFailHealthTellsAndTheServerEndsWith3) {
  const Story story = stack_.RandomStory(20, 1);
  const uint64_t sequence = stack_.Open();
  stack_.Step(sequence, story.Part(0, 10));
  const v1::SnapshotResponse snapshot = stack_.Snapshot(sequence);

  const auto health =
      grpc::health::v1::Health::NewStub(grpc::CreateChannel(stack_.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto watch = health->Watch(&context, {});
  HealthCheckResponse status;
  ASSERT_TRUE(watch->Read(&status));
  EXPECT_EQ(status.status(), HealthCheckResponse::SERVING);

  fault_->next.store(GetParam());
  grpc::StatusCode code = grpc::StatusCode::OK;
  if (GetParam() == DeviceCall::kReadCarry) {
    grpc::ClientContext call;
    v1::SnapshotRequest request;
    v1::SnapshotResponse response;
    request.set_sequence_id(sequence);
    code = stack_.stub().Snapshot(&call, request, &response).error_code();
  } else if (GetParam() == DeviceCall::kWriteCarry) {
    code = stack_.Restore(sequence, snapshot).error_code();
  } else {
    code = stack_.Forward(stack_.Request(sequence, story.Part(10, 10), 10)).status.error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(watch->Read(&status));
  EXPECT_EQ(status.status(), HealthCheckResponse::NOT_SERVING);
  const Answer later = stack_.Forward(stack_.Request(sequence, story.Part(10, 1), 10));
  EXPECT_EQ(later.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stack_.Wait(), kExitDeviceLost);
}

INSTANTIATE_TEST_SUITE_P(Calls, DeviceLostTest,
                         ::testing::Values(DeviceCall::kRun, DeviceCall::kWait, DeviceCall::kReadCarry,
                                           DeviceCall::kWriteCarry));

// The decorator alone loses nothing.
TEST(DeviceLostNegative, ADeviceThatIsNotLostGoesOn) {
  auto fault = std::make_shared<DeviceFault>();
  Stack stack({.wrap_device = [fault](std::unique_ptr<Device> inner) {
    return std::make_unique<FailingDevice>(std::move(inner), fault);
  }});
  const Story story = stack.RandomStory(60, 2);
  stack.ExpectOracle(story, stack.FreshRun(story));
  // What the device counts reaches the metrics.
  EXPECT_EQ(stack.Metric("pleiad_device_batches_total{path=\"launches\"}") +
                stack.Metric("pleiad_device_batches_total{path=\"graph\"}"),
            1);
  EXPECT_GT(stack.Metric("pleiad_device_busy_seconds_total"), 0);
  EXPECT_EQ(stack.Metric("pleiad_device_capture_failures_total"), 0);
  for (const char* kind : {"arena", "carries", "weights", "scratch"}) {
    EXPECT_GT(stack.Metric(absl::StrCat("pleiad_device_memory_bytes{kind=\"", kind, "\"}")), 0) << kind;
  }
}

}  // namespace
}  // namespace pleiad::testing
