// Integer ids that do not mix. A StrongId costs what its integer costs and converts only by name.
#pragma once

#include <compare>
#include <cstdint>
#include <utility>

namespace pleiad {

template <typename Tag, typename Int>
class StrongId {
 public:
  using Value = Int;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Int value_ = 0;
};

// What a client opens. 0 names the throw-away carry.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;
// A row of one layer's table.
using RowId = StrongId<struct RowIdTag, uint64_t>;
// A place in the arena.
using Slot = StrongId<struct SlotTag, uint32_t>;
// Zero-based decoder layer, as the wire names it.
using LayerIndex = StrongId<struct LayerIndexTag, uint32_t>;
// Dense place of a layer among the PLE layers (`p` of the hash), in ascending layer order.
using LayerOrdinal = StrongId<struct LayerOrdinalTag, uint32_t>;
// Tokens consumed by one sequence at one layer; a label, at most kMaxPosition.
using Position = StrongId<struct PositionTag, uint64_t>;
// A place in the device's carry pool.
using CarrySlot = StrongId<struct CarrySlotTag, uint32_t>;
// Work enqueued on a device; tickets of one device complete in ascending order. 0 is always complete.
using Ticket = StrongId<struct TicketTag, uint64_t>;

inline constexpr Position kMaxPosition{uint64_t{1} << 62};

}  // namespace pleiad
