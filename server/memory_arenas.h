// How much memory the allocator keeps for reuse.
#pragma once

namespace pleiad {

// glibc gives threads arenas of their own, up to eight for every core, and each keeps what once was freed in it: with 16
// cores a server grows by 5 to 12 MB over its first hundred thousand requests. With few arenas it does not. For the
// whole process; before threads are started.
void LimitMemoryArenas();

}  // namespace pleiad
