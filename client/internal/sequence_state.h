// What this process knows of one sequence, shared by its handle and by the stream that steps it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "client/connection.h"
#include "client/internal/mutex.h"
#include "client/types.h"

namespace pleiad::client::internal {

struct CarryState {
  uint64_t position = 0;
  // A step failed: the next one must say where it starts.
  bool needs_start = false;
};

// Thread-safe.
class SequenceState {
 public:
  SequenceState(std::shared_ptr<Connection> connection, SequenceId id, uint64_t epoch)
      : connection_(std::move(connection)), id_(id), epoch_(epoch) {}

  Connection& connection() const { return *connection_; }
  SequenceId id() const { return id_; }

  uint64_t epoch() {
    MutexLock lock(&mutex_);
    return epoch_;
  }
  void RaiseEpoch(uint64_t epoch) {
    MutexLock lock(&mutex_);
    epoch_ = std::max(epoch_, epoch);
  }

  // True the first time stream number `stream` asks, and again after another one has asked.
  bool JoinStream(uint64_t stream) {
    MutexLock lock(&mutex_);
    return std::exchange(stream_, stream) != stream;
  }

  CarryState carry(uint32_t layer_index) {
    MutexLock lock(&mutex_);
    return carries_[layer_index];
  }
  void set_carry(uint32_t layer_index, CarryState carry) {
    MutexLock lock(&mutex_);
    carries_[layer_index] = carry;
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const SequenceId id_;

  Mutex mutex_;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_);       // the highest one known
  uint64_t stream_ ABSL_GUARDED_BY(mutex_) = 0;  // that steps it; 0: none yet
  std::map<uint32_t, CarryState> carries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::client::internal
