// Memory for outputs. Large outputs come and go at the same few sizes; memory that is used again is in the processor's
// cache, and its pages are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/mutex.h"

namespace pleiad {

// Thread-safe.
class OutputPool {
 public:
  // Smaller outputs are the allocator's.
  static constexpr uint64_t kSmallest = 32 << 10;
  // Of memory that waits to be used again.
  static constexpr uint64_t kMostKept = 64 << 20;

  OutputPool() : core_(std::make_shared<Core>()) {}

  // `bytes` of any content. They return when the last reference goes, on any thread, also after the pool's end.
  std::shared_ptr<std::byte[]> Take(uint64_t bytes);
  // Bytes that wait to be used again.
  uint64_t kept() const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    uint64_t bytes = 0;
  };
  struct Core {
    Mutex mutex;
    std::vector<Block> kept ABSL_GUARDED_BY(mutex);  // the last returned last
    uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  };

  static Block Find(Core& core, uint64_t bytes);
  static void Return(Core& core, Block block);

  const std::shared_ptr<Core> core_;
};

}  // namespace pleiad
