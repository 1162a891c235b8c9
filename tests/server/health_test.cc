#include "server/health.h"

#include <gtest/gtest.h>

#include <vector>

namespace pleiad {
namespace {

using Status = Health::ServingStatus;
constexpr Status kServing = grpc::health::v1::HealthCheckResponse::SERVING;
constexpr Status kNotServing = grpc::health::v1::HealthCheckResponse::NOT_SERVING;

// Notes what it is told to look at.
class Recorder final : public HealthWatcher {
 public:
  explicit Recorder(const Health* health) : health_(health) {}
  void Update() override { seen.push_back(health_->serving()); }
  void End() override { ++ends; }

  std::vector<bool> seen;
  int ends = 0;

 private:
  const Health* const health_;
};

TEST(Health, ServesWhileReadyWithAReadableTable) {
  Health health;
  EXPECT_FALSE(health.serving());
  health.SetTable(TableHealth::kReadable);
  EXPECT_FALSE(health.serving());
  health.Set(Readiness::kServing);
  EXPECT_TRUE(health.serving());
  health.SetTable(TableHealth::kUnreadable);
  EXPECT_FALSE(health.serving());
  EXPECT_EQ(health.Get(""), kNotServing);
  EXPECT_EQ(health.Get("pleiad.v1.Ple"), kNotServing);
  EXPECT_EQ(health.Get("pleiad.live"), kServing);
  health.SetTable(TableHealth::kReadable);
  EXPECT_EQ(health.Get("pleiad.v1.Ple"), kServing);
}

TEST(Health, ATableThatIsReadableAgainDoesNotEndADrain) {
  Health health;
  health.Set(Readiness::kServing);
  health.SetTable(TableHealth::kUnreadable);
  health.Set(Readiness::kNotServing);
  health.SetTable(TableHealth::kReadable);
  EXPECT_FALSE(health.serving());
}

TEST(Health, ATableThatFailedWhileLoadingIsRemembered) {
  Health health;
  health.SetTable(TableHealth::kUnreadable);
  health.Set(Readiness::kServing);
  EXPECT_FALSE(health.serving());
  health.SetTable(TableHealth::kReadable);
  EXPECT_TRUE(health.serving());
}

TEST(Health, WatchersLookAgainAtEachChange) {
  Health health;
  const auto watcher = std::make_shared<Recorder>(&health);
  EXPECT_TRUE(health.Add(watcher).ok());
  health.Set(Readiness::kServing);
  health.SetTable(TableHealth::kUnreadable);
  health.SetTable(TableHealth::kReadable);
  EXPECT_EQ(watcher->seen, (std::vector<bool>{true, false, true}));
  health.Remove(watcher.get());
  health.SetTable(TableHealth::kUnreadable);
  EXPECT_EQ(watcher->seen.size(), 3u);
  EXPECT_EQ(watcher->ends, 0);
}

TEST(Health, IsWatchedBySoManyAtATime) {
  Health health;
  std::vector<std::shared_ptr<Recorder>> watchers;
  for (size_t i = 0; i < Health::kMaxWatchers; ++i) {
    watchers.push_back(std::make_shared<Recorder>(&health));
    ASSERT_TRUE(health.Add(watchers.back()).ok());
  }
  const auto one_more = std::make_shared<Recorder>(&health);
  EXPECT_EQ(health.Add(one_more).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  health.Remove(watchers.front().get());
  EXPECT_TRUE(health.Add(one_more).ok());
  health.EndWatches();
  EXPECT_EQ(one_more->ends, 1);
  EXPECT_EQ(health.Add(watchers.front()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace pleiad
