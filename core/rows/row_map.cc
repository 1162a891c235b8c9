#include "core/rows/row_map.h"

#include <cstring>

#include "core/base/status_macros.h"

namespace pleiad {

uint64_t RowMapBytes(RowMapKind kind, uint64_t rows, uint64_t most_cached) {
  if (kind == RowMapKind::kDirect) return rows * sizeof(uint32_t);
  // A flat_hash_map keeps an entry and a control byte at a load of at most 7/8, in powers of two.
  uint64_t capacity = 16;
  while (capacity * 7 / 8 < most_cached) capacity *= 2;
  return capacity * (sizeof(std::pair<uint64_t, uint32_t>) + 1);
}

absl::StatusOr<RowMap> RowMap::Create(RowMapKind kind, uint64_t rows, uint64_t most_cached, HugePages huge_pages) {
  RowMap map;
  map.bytes_ = RowMapBytes(kind, rows, most_cached);
  if (kind == RowMapKind::kDirect) {
    PLEIAD_ASSIGN_OR_RETURN(map.memory_, HostMemory::Allocate("row map", map.bytes_, huge_pages));
    // Committed now: a server that starts does not run out later.
    if (map.bytes_ > 0) std::memset(map.memory_.data(), 0, map.bytes_);
    map.direct_ = map.memory_.As<uint32_t>();
  } else {
    map.compact_.reserve(most_cached);
  }
  return map;
}

}  // namespace pleiad
