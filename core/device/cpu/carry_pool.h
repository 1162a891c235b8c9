// The conv rings and undo rows of all carries, in one allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/plan.h"

namespace pleiad {

// Addresses only; whoever copies takes care of order. Rows are [C] FP32; those of a carry lie one behind the other, its
// ring and then its undo rows.
class CarryPool {
 public:
  CarryPool() = default;
  // `memory` holds Bytes(...) for the same numbers.
  CarryPool(HostMemory memory, uint32_t state_len, uint32_t rollback_tokens, size_t channels)
      : memory_(std::move(memory)),
        state_len_(state_len),
        ring_rows_(state_len + rollback_tokens),
        channels_(channels) {}

  // The largest number where the product is larger still.
  static uint64_t Bytes(uint32_t carries, uint32_t state_len, uint32_t rollback_tokens, size_t channels) {
    const uint64_t carry = (uint64_t{2} * state_len + rollback_tokens) * channels * sizeof(float);
    uint64_t bytes = 0;
    return __builtin_mul_overflow(carry, carries, &bytes) ? std::numeric_limits<uint64_t>::max() : bytes;
  }

  uint32_t ring_rows() const { return ring_rows_; }
  uint32_t state_len() const { return state_len_; }
  size_t row_bytes() const { return channels_ * sizeof(float); }
  uint64_t bytes() const { return memory_.size(); }

  // `index` < ring_rows.
  float* RingRow(CarrySlot carry, uint32_t index) const { return Row(carry, index); }
  // `steps` back from the next token's row: 1 is the newest, at most ring_rows.
  float* RingRowBack(CarrySlot carry, const RingView& ring, uint32_t steps) const {
    return Row(carry, (ring.cursor + ring_rows_ - steps) % ring_rows_);
  }
  float* UndoRowBack(CarrySlot carry, uint32_t steps) const { return Row(carry, ring_rows_ + state_len_ - steps); }
  // Rows of state_len that exist.
  uint32_t ValidRows(const RingView& ring) const { return std::min(ring.valid, state_len_); }

 private:
  float* Row(CarrySlot carry, uint32_t row) const {
    return memory_.As<float>() + (uint64_t{carry.value()} * (ring_rows_ + state_len_) + row) * channels_;
  }

  HostMemory memory_;
  uint32_t state_len_ = 0;
  uint32_t ring_rows_ = 0;
  size_t channels_ = 0;
};

}  // namespace pleiad
