#include "core/rows/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <limits>
#include <random>
#include <set>

#include "tests/core/rows/policy_models.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;
using testing::PolicyModel;

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

bool Any(uint32_t) { return true; }
bool None(uint32_t) { return false; }

class EvictionPolicyTest : public ::testing::TestWithParam<PolicyKind> {
 protected:
  std::unique_ptr<EvictionPolicy> Filled(uint32_t slots) {
    std::unique_ptr<EvictionPolicy> policy = CreatePolicy(GetParam(), slots);
    for (uint32_t slot = 0; slot < slots; ++slot) policy->Inserted(slot, slot);
    return policy;
  }
  // One policy and its model through the same random calls; every answer must be the same.
  void RunAgainstModel(uint32_t slots, uint32_t seed);
};

void EvictionPolicyTest::RunAgainstModel(uint32_t slots, uint32_t seed) {
  const std::unique_ptr<EvictionPolicy> policy = CreatePolicy(GetParam(), slots);
  const std::unique_ptr<PolicyModel> model = testing::CreateModel(GetParam(), slots);
  std::mt19937 rng(seed);
  std::vector<uint64_t> key_in(slots);
  std::set<uint32_t> vacant, held;
  std::set<uint64_t> cached;
  for (uint32_t slot = 0; slot < slots; ++slot) vacant.insert(slot);
  const auto pick = [&rng](const std::set<uint32_t>& set) { return *std::next(set.begin(), rng() % set.size()); };
  const auto leave = [&](uint32_t slot) {
    vacant.insert(slot);
    held.erase(slot);
    cached.erase(key_in[slot]);
  };
  for (int turn = 0; turn < 20000; ++turn) {
    const uint32_t slot = slots == 0 ? 0 : rng() % slots;
    const uint32_t call = rng() % 100;
    if (call < 40) {
      const uint64_t key = rng() % (3 * slots + 1);
      if (!vacant.empty() && cached.insert(key).second) {
        const uint32_t to = pick(vacant);
        vacant.erase(to);
        key_in[to] = key;
        policy->Inserted(to, key);
        model->Inserted(to, key);
      }
    } else if (call < 60) {
      if (slots == 0) continue;
      policy->Touch(slot);  // of a vacant slot too: no effect
      model->Touch(slot);
    } else if (call < 64) {
      if (slots == 0 || vacant.count(slot) > 0) continue;
      policy->Removed(slot);
      model->Removed(slot);
      leave(slot);
    } else if (call < 70) {
      if (slots == 0 || vacant.count(slot) > 0) continue;
      if (!held.insert(slot).second) held.erase(slot);
    } else if (call < 71) {
      held.clear();
    } else if (vacant.size() * 8 <= slots || call < 75) {
      const uint32_t budget = rng() % 4 == 0 ? 10 * slots : rng() % (slots + 2);
      uint32_t policy_steps = budget, model_steps = budget, asked = 0;
      const auto free = [&](uint32_t candidate) {
        ++asked;
        EXPECT_EQ(vacant.count(candidate), 0u) << "asked of a vacant slot";
        return held.count(candidate) == 0;
      };
      const std::optional<uint32_t> victim = policy->Evict(free, &policy_steps);
      EXPECT_LE(asked, budget - policy_steps);
      ASSERT_EQ(victim, model->Evict(free, &model_steps)) << "turn " << turn;
      ASSERT_EQ(policy_steps, model_steps) << "turn " << turn;
      ASSERT_LE(policy_steps, budget);
      if (victim.has_value()) {
        ASSERT_EQ(vacant.count(*victim) + held.count(*victim), 0u) << "turn " << turn;
        leave(*victim);
      } else if (budget == 10 * slots) {  // long enough for any policy to meet every row at its lowest count
        ASSERT_EQ(held.size() + vacant.size(), slots) << "turn " << turn;
      }
    }
  }
}

TEST_P(EvictionPolicyTest, DoesWhatItsModelDoesOnRandomCalls) {
  for (const uint32_t slots : {0u, 1u, 2u, 3u, 7u, 19u, 64u, 257u}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(slots, " slots, seed ", seed));
      RunAgainstModel(slots, seed);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EvictionPolicyTest, EmptiesEverySlotOnceAndThenNone) {
  const std::unique_ptr<EvictionPolicy> policy = Filled(1000);
  for (uint32_t slot = 0; slot < 1000; slot += 3) policy->Touch(slot);
  std::set<uint32_t> seen;
  for (int i = 0; i < 1000; ++i) {
    uint32_t steps = kUnbounded;
    const std::optional<uint32_t> victim = policy->Evict(Any, &steps);
    ASSERT_TRUE(victim.has_value());
    EXPECT_TRUE(seen.insert(*victim).second) << *victim;
  }
  uint32_t steps = 1000000;
  EXPECT_EQ(policy->Evict(Any, &steps), std::nullopt);
}

TEST_P(EvictionPolicyTest, LooksAtNoMoreThanTheBudget) {
  const std::unique_ptr<EvictionPolicy> policy = Filled(100);
  uint32_t steps = 0;
  EXPECT_EQ(policy->Evict(Any, &steps), std::nullopt);
  steps = 17;
  EXPECT_EQ(policy->Evict(None, &steps), std::nullopt);
  EXPECT_EQ(steps, 0u);
  steps = 5;
  EXPECT_TRUE(policy->Evict(Any, &steps).has_value());
  EXPECT_EQ(steps, 4u);
}

TEST_P(EvictionPolicyTest, FindsTheOnlySlotThatMayGo) {
  for (uint32_t only = 0; only < 40; ++only) {
    const std::unique_ptr<EvictionPolicy> policy = Filled(40);
    for (uint32_t slot = 0; slot < 40; ++slot) {
      for (uint32_t use = 0; use < slot % 5; ++use) policy->Touch(slot);
    }
    uint32_t steps = 1000;
    EXPECT_EQ(policy->Evict([&](uint32_t slot) { return slot == only; }, &steps), only);
  }
}

TEST_P(EvictionPolicyTest, ARowInUseOutlivesRowsThatAreNamedOnce) {
  const std::unique_ptr<EvictionPolicy> policy = Filled(50);
  for (uint64_t key = 50; key < 5000; ++key) {
    policy->Touch(7);
    uint32_t steps = kUnbounded;
    const std::optional<uint32_t> victim = policy->Evict(Any, &steps);
    ASSERT_TRUE(victim.has_value());
    ASSERT_NE(*victim, 7u);
    policy->Inserted(*victim, key);
  }
}

TEST_P(EvictionPolicyTest, IsMadeByItsName) {
  const absl::StatusOr<PolicyKind> kind = ParsePolicy(Name(GetParam()));
  ASSERT_TRUE(kind.ok()) << kind.status();
  EXPECT_EQ(*kind, GetParam());
  EXPECT_STREQ(CreatePolicy(*kind, 3)->name(), Name(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, EvictionPolicyTest, ::testing::ValuesIn(kPolicyKinds),
                         [](const auto& test) { return Name(test.param); });

TEST(PolicyName, UnknownNamesAreRefusedWithTheRule) {
  const absl::Status status = ParsePolicy("lru").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("\"lru\": must be clock, s3fifo or sieve"));
}

TEST(S3Fifo, ARowThatComesBackSoonSurvivesAScan) {
  S3FifoPolicy policy(100);
  uint64_t key = 0;
  for (uint32_t slot = 0; slot < 100; ++slot) policy.Inserted(slot, key++);
  const auto replace = [&](uint64_t with) {
    uint32_t steps = kUnbounded;
    const uint32_t slot = policy.Evict(Any, &steps).value_or(0);
    policy.Inserted(slot, with);
    return slot;
  };
  ASSERT_EQ(replace(key++), 0u);
  const uint32_t back = replace(0);  // key 0, forgotten a moment ago
  for (int i = 0; i < 1000; ++i) ASSERT_NE(replace(key++), back);
}

// What the allocator hands out for a policy of many slots, the counts of uses aside.
TEST(EvictionPolicyBytes, AreThoseThatThePolicyTakes) {
  constexpr uint32_t kSlots = 1 << 20;
  for (const PolicyKind kind : kPolicyKinds) {
    const uint64_t before = ::mallinfo2().hblkhd + ::mallinfo2().uordblks;
    const std::unique_ptr<EvictionPolicy> policy = CreatePolicy(kind, kSlots);
    const uint64_t taken = ::mallinfo2().hblkhd + ::mallinfo2().uordblks - before;
    if (taken == 0) GTEST_SKIP() << "this allocator does not count";
    EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(PolicyBytes(kind, kSlots) + kSlots), 3.0 * kSlots)
        << Name(kind);
  }
}

}  // namespace
}  // namespace pleiad
