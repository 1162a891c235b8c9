// The limit of open files of this process.
#pragma once

#include <cstdint>

namespace pleiad {

// Raises the soft limit to the hard one; where that is refused, the limit stays. Every connection takes a file, and a
// gRPC listener that once meets the limit accepts no more connections.
void RaiseOpenFileLimit();

// The soft limit; the largest number where it cannot be asked for.
uint64_t OpenFileLimit();

}  // namespace pleiad
