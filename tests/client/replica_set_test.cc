#include "client/internal/replica_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/replicated_client.h"

namespace pleiad::client::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

std::vector<std::string> Addresses(size_t count) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < count; ++i) addresses.push_back(absl::StrCat("ple-", i, ":50051"));
  return addresses;
}

std::string Best(const std::vector<std::string>& addresses, int rank) {
  return addresses[RendezvousOrder(addresses, absl::StrCat("rank-", rank))[0]];
}

TEST(RendezvousTest, KeysAreSpreadEvenly) {
  const std::vector<std::string> addresses = Addresses(5);
  std::map<std::string, int> count;
  for (int rank = 0; rank < 5000; ++rank) ++count[Best(addresses, rank)];
  ASSERT_EQ(count.size(), 5u);
  // 1000 each, with a deviation of 28.
  for (const auto& [address, keys] : count) EXPECT_NEAR(keys, 1000, 140) << address;
}

TEST(RendezvousTest, OnlyTheKeysOfAReplicaThatGoesMoveAndTheyGoToTheirNext) {
  const std::vector<std::string> all = Addresses(5);
  std::vector<std::string> rest = all;
  rest.erase(rest.begin() + 2);
  std::map<std::string, int> heirs;
  for (int rank = 0; rank < 1000; ++rank) {
    const std::vector<size_t> order = RendezvousOrder(all, absl::StrCat("rank-", rank));
    const std::string& heir = all[order[0]] == all[2] ? all[order[1]] : all[order[0]];
    ASSERT_EQ(Best(rest, rank), heir);
    if (all[order[0]] == all[2]) ++heirs[heir];
  }
  EXPECT_EQ(heirs.size(), 4u) << "the others share what it had";
}

TEST(RendezvousTest, TheOrderOfTheAddressesDoesNotMatter) {
  const std::vector<std::string> forward = Addresses(5);
  const std::vector<std::string> backward(forward.rbegin(), forward.rend());
  for (int rank = 0; rank < 100; ++rank) EXPECT_EQ(Best(forward, rank), Best(backward, rank));
}

TEST(ReplicaSetTest, AFailedReplicaIsLeftAloneForATimeThatDoublesUpToItsMost) {
  ReplicaSet set({1, 0}, {absl::Milliseconds(100), absl::Milliseconds(400)}, 7);
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(set.Next(now), 1u);
  for (const int most : {100, 200, 400, 400}) {
    set.Failed(1, now);
    EXPECT_EQ(set.Next(now), 0u);
    EXPECT_EQ(set.Next(now, 0), std::nullopt);
    const absl::Time again = set.NextAt(0);
    EXPECT_GE(again, now + absl::Milliseconds(most) / 2);
    EXPECT_LE(again, now + absl::Milliseconds(most));
    EXPECT_EQ(set.Next(again - absl::Nanoseconds(1)), 0u);
    EXPECT_EQ(set.Next(again), 1u);
    now = again;
  }
  set.Worked(1);
  set.Failed(1, now);
  EXPECT_LE(set.NextAt(0), now + absl::Milliseconds(100));
}

TEST(ReplicaSetTest, TheOnesBeforeAReplicaAreThoseOfTheOrderThatMayBeTried) {
  ReplicaSet set({2, 0, 1}, {absl::Seconds(1), absl::Seconds(1)}, 7);
  const absl::Time now = absl::UnixEpoch();
  EXPECT_THAT(set.Before(2, now), IsEmpty());
  EXPECT_THAT(set.Before(0, now), ElementsAre(2));
  EXPECT_THAT(set.Before(1, now), ElementsAre(2, 0));
  set.Failed(2, now);
  EXPECT_THAT(set.Before(0, now), IsEmpty());
  EXPECT_THAT(set.Before(1, now), ElementsAre(0));
  set.Failed(0, now);
  set.Failed(1, now);
  EXPECT_THAT(set.Before(1, now), IsEmpty());
  EXPECT_THAT(set.Before(0, now + absl::Seconds(1)), ElementsAre(2));
}

TEST(ReplicaSetTest, JitterFollowsTheSeed) {
  const auto times = [](uint64_t seed) {
    ReplicaSet set({0}, {absl::Seconds(1), absl::Seconds(8)}, seed);
    std::vector<absl::Time> at;
    for (int i = 0; i < 4; ++i) {
      set.Failed(0, absl::UnixEpoch());
      at.push_back(set.NextAt());
    }
    return at;
  };
  EXPECT_EQ(times(1), times(1));
  EXPECT_NE(times(1), times(2));
}

TEST(ReplicaSetTest, JitterIsFromHalfToAllAndOfTheKeyToo) {
  const auto waits = [](uint64_t seed, const std::string& key) {
    ReplicaSet set({0}, {absl::Seconds(1), absl::Seconds(8)}, JitterSeed(seed, key));
    std::vector<absl::Duration> drawn;
    for (int i = 0; i < 100; ++i) drawn.push_back(set.Jittered(absl::Minutes(4)));
    return drawn;
  };
  const std::vector<absl::Duration> some = waits(1, "rank-0");
  EXPECT_THAT(some, Each(AllOf(Ge(absl::Minutes(2)), Le(absl::Minutes(4)))));
  EXPECT_LT(*std::min_element(some.begin(), some.end()), absl::Minutes(2.2));
  EXPECT_GT(*std::max_element(some.begin(), some.end()), absl::Minutes(3.8));
  EXPECT_EQ(some, waits(1, "rank-0"));
  EXPECT_NE(some, waits(1, "rank-1"));
  EXPECT_NE(some, waits(2, "rank-0"));
}

TEST(RetryBudgetTest, AttemptsComeBackAtTheirRateAndNoMoreThanTheBucketHolds) {
  RetryBudget budget(2, 0.5);
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(budget.NextAt(now), now);
  EXPECT_TRUE(budget.Take(now));
  EXPECT_TRUE(budget.Take(now));
  EXPECT_FALSE(budget.Take(now));
  const absl::Time again = budget.NextAt(now);
  EXPECT_NEAR(absl::ToDoubleSeconds(again - now), 2, 1e-6);
  EXPECT_FALSE(budget.Take(again - absl::Milliseconds(1)));
  EXPECT_TRUE(budget.Take(again));
  now = again + absl::Hours(1);
  EXPECT_TRUE(budget.Take(now));
  EXPECT_TRUE(budget.Take(now));
  EXPECT_FALSE(budget.Take(now));
}

TEST(ReplicatedOptionsTest, ABadMemberIsRefusedByName) {
  const auto refused = [](const std::function<void(ReplicatedOptions&)>& change) {
    ReplicatedOptions options;
    options.addresses = {"a:1", "b:1"};
    change(options);
    return std::string(options.Validate().message());
  };
  EXPECT_EQ(refused([](ReplicatedOptions&) {}), "");
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.addresses.clear(); }), HasSubstr("addresses"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.addresses.push_back("a:1"); }), HasSubstr("addresses a:1"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.affinity_key = "\n"; }), HasSubstr("affinity_key"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.give_up_after = absl::ZeroDuration(); }),
              HasSubstr("give_up_after"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.reconnect_timeout = -absl::Seconds(1); }),
              HasSubstr("reconnect_timeout -1s"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.move_back_interval = absl::Microseconds(999); }),
              HasSubstr("move_back_interval 999us"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.max_backoff = absl::Nanoseconds(1); }), HasSubstr("max_backoff"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.retry_budget = 0; }), HasSubstr("retry_budget"));
  EXPECT_THAT(refused([](ReplicatedOptions& o) { o.retries_per_second = 0; }), HasSubstr("retries_per_second"));
}

}  // namespace
}  // namespace pleiad::client::internal
