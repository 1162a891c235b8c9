#include "server/memory_arenas.h"

#include <malloc.h>

namespace pleiad {
namespace {

constexpr int kArenas = 2;

}  // namespace

void LimitMemoryArenas() { ::mallopt(M_ARENA_MAX, kArenas); }

}  // namespace pleiad
