// Row -> where it is, for one layer. The caller serialises.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/host_memory.h"
#include "core/base/strong_id.h"

namespace pleiad {

// What a map holds for a row: nothing, its slot, or the arrival that will bring it.
class RowPlace {
 public:
  RowPlace() = default;
  static RowPlace InSlot(uint32_t slot) { return RowPlace(slot + 1); }
  static RowPlace Arriving(uint32_t arrival) { return RowPlace(arrival | kArrivingBit); }
  static RowPlace FromBits(uint32_t bits) { return RowPlace(bits); }

  bool absent() const { return bits_ == 0; }
  bool arriving() const { return (bits_ & kArrivingBit) != 0; }
  // Of a place that is neither absent nor arriving.
  uint32_t slot() const { return bits_ - 1; }
  uint32_t arrival() const { return bits_ & ~kArrivingBit; }
  uint32_t bits() const { return bits_; }

 private:
  static constexpr uint32_t kArrivingBit = 0x80000000u;
  explicit RowPlace(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

// Slots below this fit a map.
inline constexpr uint32_t kMaxSlots = 0x7FFFFFFEu;

enum class RowMapKind {
  kDirect,   // 4 bytes a row of the table, committed when made; one memory access a lookup
  kCompact,  // a hash table over the rows that are cached
};

class RowMap {
 public:
  // Direct maps take huge pages where the system gives them. ResourceExhausted when memory cannot be had.
  static absl::StatusOr<RowMap> Create(RowMapKind kind, uint64_t rows, uint64_t most_cached, HugePages huge_pages);

  // All rows are < `rows`.
  void Prefetch(RowId row) const {
    if (direct_ != nullptr) {
      __builtin_prefetch(direct_ + row.value());
    } else {
      compact_.prefetch(row.value());
    }
  }
  RowPlace Find(RowId row) const {
    if (direct_ != nullptr) return RowPlace::FromBits(direct_[row.value()]);
    const auto found = compact_.find(row.value());
    return found == compact_.end() ? RowPlace() : RowPlace::FromBits(found->second);
  }
  void Set(RowId row, RowPlace place) {
    if (direct_ != nullptr) {
      direct_[row.value()] = place.bits();
    } else {
      compact_[row.value()] = place.bits();
    }
  }
  void Erase(RowId row) {
    if (direct_ != nullptr) {
      direct_[row.value()] = 0;
    } else {
      compact_.erase(row.value());
    }
  }

  // As reserved when made.
  uint64_t bytes() const { return bytes_; }

 private:
  RowMap() = default;

  HostMemory memory_;
  uint32_t* direct_ = nullptr;
  absl::flat_hash_map<uint64_t, uint32_t> compact_;
  uint64_t bytes_ = 0;
};

// kCompact when `most_cached` is under 1 % of `rows`.
inline RowMapKind ChooseRowMap(uint64_t rows, uint64_t most_cached) {
  return most_cached < rows / 100 ? RowMapKind::kCompact : RowMapKind::kDirect;
}

// Bytes of a map, before it is made.
uint64_t RowMapBytes(RowMapKind kind, uint64_t rows, uint64_t most_cached);

}  // namespace pleiad
