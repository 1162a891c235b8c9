// How much memory of clients the device holds: it stays taken whatever becomes of the files that it belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"

namespace pleiad {

// Thread-safe.
class PinnedBytes : public std::enable_shared_from_this<PinnedBytes> {
 public:
  // `limit` of all clients; each has half of it.
  static std::shared_ptr<PinnedBytes> Create(uint64_t limit);

  // `bytes` count until the result is destroyed, which may outlive this. Null where so many are not left.
  std::shared_ptr<void> Take(const std::string& client, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t total() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit PinnedBytes(uint64_t limit) : limit_(limit) {}
  void Return(const std::string& client, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t limit_;
  mutable Mutex mutex_;
  uint64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint64_t> of_client_ ABSL_GUARDED_BY(mutex_);  // none of 0
};

}  // namespace pleiad
