#include "core/base/random_ids.h"

#include <sys/random.h>

#include <cstdlib>

namespace pleiad {

uint64_t RandomIds::Next() {
  uint64_t id = 0;
  while (id == 0) {
    if (left_ == 0) {
      // Up to 256 bytes are never interrupted, the rest of the block is asked for apart.
      for (size_t i = 0; i < block_.size(); i += 32) {
        if (getrandom(&block_[i], 32 * sizeof(uint64_t), 0) != static_cast<ssize_t>(32 * sizeof(uint64_t)))
          std::abort();
      }
      left_ = block_.size();
    }
    id = block_[--left_];
    block_[left_] = 0;
  }
  return id;
}

}  // namespace pleiad
