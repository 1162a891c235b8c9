#include "server/output_pool.h"

#include <utility>

namespace pleiad {

std::shared_ptr<std::byte[]> OutputPool::Take(uint64_t bytes) {
  if (bytes < kSmallest) return std::make_shared_for_overwrite<std::byte[]>(bytes);
  Block block = Find(*core_, bytes);
  if (block.data == nullptr) block = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  const uint64_t size = block.bytes;
  return {block.data.release(), [core = core_, size](std::byte* data) {
            Return(*core, {std::unique_ptr<std::byte[]>(data), size});
          }};
}

uint64_t OutputPool::kept() const {
  MutexLock lock(&core_->mutex);
  return core_->bytes;
}

OutputPool::Block OutputPool::Find(Core& core, uint64_t bytes) {
  MutexLock lock(&core.mutex);
  for (size_t i = core.kept.size(); i-- > 0;) {
    // One of up to twice the size wastes no more than that.
    if (core.kept[i].bytes < bytes || core.kept[i].bytes / 2 > bytes) continue;
    Block block = std::move(core.kept[i]);
    core.kept.erase(core.kept.begin() + static_cast<ptrdiff_t>(i));
    core.bytes -= block.bytes;
    return block;
  }
  return {};
}

void OutputPool::Return(Core& core, Block block) {
  if (block.bytes > kMostKept) return;
  std::vector<Block> freed;  // without the lock
  MutexLock lock(&core.mutex);
  core.bytes += block.bytes;
  core.kept.push_back(std::move(block));
  size_t oldest = 0;
  for (; core.bytes > kMostKept; ++oldest) {
    core.bytes -= core.kept[oldest].bytes;
    freed.push_back(std::move(core.kept[oldest]));
  }
  core.kept.erase(core.kept.begin(), core.kept.begin() + static_cast<ptrdiff_t>(oldest));
}

}  // namespace pleiad
