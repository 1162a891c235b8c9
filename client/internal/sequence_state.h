// What this process knows of one sequence, shared by its handle and by the stream that steps it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
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

// Thread-safe. A step asks for much of this, and a request may have many: the layer that was named first, mostly the
// only one, takes no lock.
class alignas(64) SequenceState {
 public:
  SequenceState(std::shared_ptr<Connection> connection, SequenceId id, uint64_t epoch)
      : id_(id), epoch_(epoch), connection_(std::move(connection)) {}

  Connection& connection() const { return *connection_; }
  SequenceId id() const { return id_; }

  // Asks for what a step touches: the line it begins with, and before it the references that make_shared counts.
  void Prefetch() const {
    __builtin_prefetch(this, 1);
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(this) - 64), 1);
  }

  uint64_t epoch() const { return epoch_.load(); }
  void RaiseEpoch(uint64_t epoch) {
    uint64_t known = epoch_.load();
    while (known < epoch && !epoch_.compare_exchange_weak(known, epoch)) {
    }
  }

  // True the first time stream number `stream` asks, and again after another one has asked.
  bool JoinStream(uint64_t stream) { return stream_.load() != stream && stream_.exchange(stream) != stream; }

  CarryState carry(uint32_t layer_index) {
    if (first_layer_.load() == layer_index) return Unpack(first_carry_.load());
    MutexLock lock(&mutex_);
    if (first_layer_.load() == layer_index) return Unpack(first_carry_.load());
    const auto found = carries_.find(layer_index);
    return found == carries_.end() ? CarryState() : found->second;
  }
  void set_carry(uint32_t layer_index, CarryState carry) {
    if (first_layer_.load() == layer_index) return first_carry_.store(Pack(carry));
    MutexLock lock(&mutex_);
    if (first_layer_.load() == kNoLayer || first_layer_.load() == layer_index) {
      first_carry_.store(Pack(carry));
      first_layer_.store(layer_index);
    } else {
      carries_[layer_index] = carry;
    }
  }

 private:
  static constexpr uint64_t kNoLayer = std::numeric_limits<uint64_t>::max();
  // Positions are at most 2^62.
  static constexpr uint64_t kNeedsStart = uint64_t{1} << 63;

  static uint64_t Pack(const CarryState& carry) {
    return std::min(carry.position, kNeedsStart - 1) | (carry.needs_start ? kNeedsStart : 0);
  }
  static CarryState Unpack(uint64_t packed) { return {packed & ~kNeedsStart, (packed & kNeedsStart) != 0}; }

  const SequenceId id_;
  std::atomic<uint64_t> epoch_;                  // the highest one known
  std::atomic<uint64_t> stream_{0};              // that steps it; 0: none yet
  std::atomic<uint64_t> first_layer_{kNoLayer};  // written once, after its carry
  std::atomic<uint64_t> first_carry_{0};
  const std::shared_ptr<Connection> connection_;

  Mutex mutex_;
  std::map<uint32_t, CarryState> carries_ ABSL_GUARDED_BY(mutex_);  // of other layers
};

}  // namespace pleiad::client::internal
