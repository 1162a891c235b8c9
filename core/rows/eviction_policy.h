// Which slot of the arena to empty next. Pure: no I/O, no clock, no locks; the caller serialises all calls of one
// policy. Slots are [0, slots); each is vacant or occupied. All memory is taken at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

// One byte a slot, its own or somewhere in the words of its owner.
class UseCounts {
 public:
  UseCounts(uint32_t slots, uint8_t initial) : slots_(slots), initial_(initial), own_(slots, initial) {
    base_ = own_.data();
  }
  UseCounts(const UseCounts&) = delete;
  UseCounts& operator=(const UseCounts&) = delete;

  uint32_t size() const { return slots_; }
  uint8_t& operator[](uint32_t slot) { return base_[size_t{slot} * stride_]; }
  const uint8_t* at(uint32_t slot) const { return base_ + size_t{slot} * stride_; }
  void MoveTo(uint8_t* base, size_t stride) {
    base_ = base;
    stride_ = stride;
    for (uint32_t slot = 0; slot < slots_; ++slot) (*this)[slot] = initial_;
    own_ = {};
  }

 private:
  const uint32_t slots_;
  const uint8_t initial_;
  std::vector<uint8_t> own_;
  uint8_t* base_ = nullptr;
  size_t stride_ = 1;
};

class EvictionPolicy {
 public:
  // Uses of a row are counted no further than this.
  static constexpr uint8_t kMaxUses = 3;

  virtual ~EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;

  virtual const char* name() const = 0;

  // The slot's row was named again. No effect on a vacant slot.
  void Touch(uint32_t slot) {
    uint8_t& uses = uses_[slot];
    if (uses < kMaxUses) ++uses;
  }
  // Keeps the counts of uses at `base`, one in every `stride` bytes, where the caller's hot path is anyway. Before the
  // first Inserted; the bytes outlive the policy.
  void ShareUses(uint8_t* base, size_t stride) { uses_.MoveTo(base, stride); }

  // `key`, (layer, row) packed by the caller, has come into `slot`, which was vacant. Its first use is this one.
  virtual void Inserted(uint32_t slot, uint64_t key) = 0;

  // The row of the occupied `slot` was forgotten by the caller: the slot is vacant, the row's past is dropped.
  virtual void Removed(uint32_t slot) = 0;

  // Chooses an occupied slot for which `evictable` is true and makes it vacant. Looks at no more than *steps
  // candidates and lowers *steps by those it looked at; nullopt where none was found with them. A slot that is not
  // evictable is passed over and stays. `evictable` must not call the policy.
  virtual std::optional<uint32_t> Evict(absl::FunctionRef<bool(uint32_t slot)> evictable, uint32_t* steps) = 0;

 protected:
  // Of a vacant slot, in uses_.
  static constexpr uint8_t kVacant = 0xFF;

  explicit EvictionPolicy(uint32_t slots) : uses_(slots, kVacant) {}

  UseCounts uses_;
};

enum class PolicyKind : uint8_t { kClock, kS3Fifo, kSieve };
inline constexpr PolicyKind kPolicyKinds[] = {PolicyKind::kClock, PolicyKind::kS3Fifo, PolicyKind::kSieve};

// The best on balance of tests/bench/hit_rate_bench.
inline constexpr PolicyKind kDefaultPolicy = PolicyKind::kS3Fifo;

std::unique_ptr<EvictionPolicy> CreatePolicy(PolicyKind kind, uint32_t slots);

// Bytes it keeps beside the counts of uses, one a slot: about, what S3-FIFO remembers of evicted rows included.
constexpr uint64_t PolicyBytes(PolicyKind kind, uint32_t slots) {
  switch (kind) {
    case PolicyKind::kClock:
      return 0;
    case PolicyKind::kS3Fifo:
      return uint64_t{18} * slots;
    case PolicyKind::kSieve:
      return uint64_t{8} * slots;
  }
  return 0;
}

// "clock", "s3fifo", "sieve".
const char* Name(PolicyKind kind);
// InvalidArgument naming the value and the names there are.
absl::StatusOr<PolicyKind> ParsePolicy(absl::string_view name);

}  // namespace pleiad
