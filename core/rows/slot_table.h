// What the host knows of each slot of the arena, one word a slot. The caller serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/host_memory.h"
#include "core/base/status_macros.h"

namespace pleiad {

enum class SlotState : uint8_t { kFree, kArriving, kPresent };

// `stamp` is the number of the plan that last named the slot. Plans of steps hold what they name by that stamp alone:
// while the oldest of them that is not enqueued has a number <= stamp, the slot stays, and ending a plan touches no
// slot. `holds` counts prestages, which may live long. Both stick at their greatest value: the slot is held for ever
// then. `uses` is the policy's.
struct SlotWord {
  uint64_t stamp : 42;
  uint64_t holds : 12;
  uint64_t state : 2;
  uint64_t uses : 8;

  static constexpr uint64_t kMaxStamp = (uint64_t{1} << 42) - 1;
  static constexpr uint64_t kMaxHolds = (uint64_t{1} << 12) - 1;

  void Hold() {
    if (holds < kMaxHolds) holds = holds + 1;
  }
  void EndHold() {
    if (holds < kMaxHolds) holds = holds - 1;
  }
};
static_assert(sizeof(SlotWord) == sizeof(uint64_t));
// Of SlotWord::uses, on a little-endian machine.
inline constexpr size_t kUsesByte = 7;

class SlotTable {
 public:
  static absl::StatusOr<SlotTable> Create(uint32_t slots, HugePages huge_pages) {
    SlotTable table;
    PLEIAD_ASSIGN_OR_RETURN(table.words_, HostMemory::Allocate("slots", slots * sizeof(SlotWord), huge_pages));
    PLEIAD_ASSIGN_OR_RETURN(table.keys_, HostMemory::Allocate("slots", slots * sizeof(uint64_t), huge_pages));
    table.slots_ = slots;
    return table;
  }

  uint32_t size() const { return slots_; }
  SlotWord& operator[](uint32_t slot) { return words_.As<SlotWord>()[slot]; }
  const SlotWord& operator[](uint32_t slot) const { return words_.As<SlotWord>()[slot]; }
  uint8_t* uses() { return words_.As<uint8_t>() + kUsesByte; }
  void Prefetch(uint32_t slot) const { __builtin_prefetch(words_.As<SlotWord>() + slot, 1); }
  // Layer and row of a slot that is not free; see RowKey.
  uint64_t& key(uint32_t slot) { return keys_.As<uint64_t>()[slot]; }
  uint64_t key(uint32_t slot) const { return keys_.As<uint64_t>()[slot]; }

  std::optional<uint32_t> TakeFree() {
    if (!freed_.empty()) {
      const uint32_t slot = freed_.back();
      freed_.pop_back();
      return slot;
    }
    if (untouched_ == slots_) return std::nullopt;
    return untouched_++;
  }
  void Free(uint32_t slot) {
    (*this)[slot].state = static_cast<uint8_t>(SlotState::kFree);
    freed_.push_back(slot);
  }

 private:
  HostMemory words_;
  HostMemory keys_;
  uint32_t slots_ = 0;
  uint32_t untouched_ = 0;  // slots from here on were never taken
  std::vector<uint32_t> freed_;
};

// (layer, row) in one word.
inline uint64_t RowKey(uint32_t layer, uint64_t row) { return uint64_t{layer} << 56 | row; }
inline uint32_t LayerOfKey(uint64_t key) { return static_cast<uint32_t>(key >> 56); }
inline uint64_t RowOfKey(uint64_t key) { return key & ((uint64_t{1} << 56) - 1); }

}  // namespace pleiad
