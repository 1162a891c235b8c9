// Unguessable 64-bit ids from the system's generator, drawn in blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pleiad {

// Not thread-safe.
class RandomIds {
 public:
  // Never 0.
  uint64_t Next();

 private:
  std::array<uint64_t, 64> block_{};
  size_t left_ = 0;
};

}  // namespace pleiad
