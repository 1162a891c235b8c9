// Opening and releasing a sequence allocates nothing. In a binary of its own: it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/core/engine/harness.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* place = std::malloc(bytes)) return place;
  std::abort();
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, size_t) noexcept { std::free(place); }

namespace pleiad {
namespace {

TEST(OpenRelease, AllocatesNothing) {
  Harness h;
  h.clock.AwaitWaiter();  // the engine's threads have started
  Engine& engine = *h.engine;
  const auto cycle = [&engine] {
    SequenceId id;
    engine.Open({}, [&id](OpenResult result) { id = result.sequence; });
    engine.Release(id, 0, [](const ReleaseResult&) {});
  };
  for (int i = 0; i < 1000; ++i) cycle();
  const uint64_t before = allocations.load();
  for (int i = 0; i < 100000; ++i) cycle();
  EXPECT_EQ(allocations.load() - before, 0u);
  EXPECT_EQ(engine.stats().sequences_opened, 101000u);
  // The counter counts.
  const uint64_t now = allocations.load();
  delete new int;
  EXPECT_GT(allocations.load(), now);
}

}  // namespace
}  // namespace pleiad
