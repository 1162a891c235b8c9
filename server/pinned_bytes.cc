#include "server/pinned_bytes.h"

namespace pleiad {

std::shared_ptr<PinnedBytes> PinnedBytes::Create(uint64_t limit) {
  return std::shared_ptr<PinnedBytes>(new PinnedBytes(limit));
}

std::shared_ptr<void> PinnedBytes::Take(const std::string& client, uint64_t bytes) {
  MutexLock lock(&mutex_);
  const auto found = of_client_.find(client);
  const uint64_t used = found == of_client_.end() ? 0 : found->second;
  if (bytes == 0 || bytes > limit_ - total_ || bytes > limit_ / 2 - used) return nullptr;
  total_ += bytes;
  of_client_[client] = used + bytes;
  return std::shared_ptr<void>(this,
                               [self = shared_from_this(), client, bytes](void*) { self->Return(client, bytes); });
}

void PinnedBytes::Return(const std::string& client, uint64_t bytes) {
  MutexLock lock(&mutex_);
  total_ -= bytes;
  const auto found = of_client_.find(client);
  found->second -= bytes;
  if (found->second == 0) of_client_.erase(found);
}

uint64_t PinnedBytes::total() const {
  MutexLock lock(&mutex_);
  return total_;
}

}  // namespace pleiad
