// Graphs that the device could not capture: counted, logged once, and steps run without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>

#include "tests/e2e/in_process_server.h"
#include "tests/e2e/log_lines.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/failing_device.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

// Says what a device says whose captures have failed.
class DeviceWithoutGraphs final : public FailingDevice {
 public:
  explicit DeviceWithoutGraphs(std::unique_ptr<Device> inner)
      : FailingDevice(std::move(inner), std::make_shared<DeviceFault>()), info_(FailingDevice::info()) {
    info_.detail += ", graphs failed: planted";
  }

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override {
    DeviceStats stats = FailingDevice::stats();
    stats.capture_failures = 3;
    return stats;
  }

 private:
  DeviceInfo info_;
};

TEST(GraphFallback, IsCountedAndLoggedOnceAndStepsRun) {
  const TempDir model;
  WriteCheckpoint({}, model.path());
  const LogLines lines;
  InProcessServer server(model.path(), nullptr, nullptr, {},
                         {.wrap_device = [](std::unique_ptr<Device> inner, const Geometry&) {
                           return std::make_unique<DeviceWithoutGraphs>(std::move(inner));
                         }});
  client::Client client = server.Connect();
  const client::Sequence sequence = *client.OpenSequence();
  const auto stream = *client.OpenStream();
  std::mt19937 random(1);
  RunPassage(*stream, sequence, RandomPassage(random, 8, client.model()), {1, 3, 4});
  EXPECT_EQ(MetricValue(ScrapeMetrics(server.metrics_port()), "pleiad_device_capture_failures_total"), 3);
  const std::string text = lines.text();
  const std::string line = "3 graph(s) could not be captured, batches of their sizes run launch by launch: ";
  ASSERT_THAT(text, HasSubstr(line));
  EXPECT_EQ(text.find(line), text.rfind(line)) << "once";
  EXPECT_THAT(text, HasSubstr("graphs failed: planted")) << "with the reason";
}

}  // namespace
}  // namespace pleiad::testing
