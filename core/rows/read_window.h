// Which bytes of a file are read for a range of it where reads must be aligned.
#pragma once

#include <cstdint>

namespace pleiad {

struct ReadWindow {
  uint64_t offset = 0;  // a multiple of the alignment
  uint64_t bytes = 0;   // likewise
};

// `alignment` is a power of two here and below.
inline uint64_t AlignDown(uint64_t value, uint64_t alignment) { return value & ~(alignment - 1); }
inline uint64_t AlignUp(uint64_t value, uint64_t alignment) { return AlignDown(value + alignment - 1, alignment); }

// The smallest aligned window that holds the range; it may reach past the end of the file.
// offset + bytes + alignment < 2^64.
inline ReadWindow CoveringWindow(uint64_t offset, uint64_t bytes, uint64_t alignment) {
  const uint64_t first = AlignDown(offset, alignment);
  return {.offset = first, .bytes = AlignUp(offset + bytes, alignment) - first};
}

}  // namespace pleiad
