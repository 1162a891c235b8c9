#include "core/model/table_layout.h"

#include <algorithm>

namespace pleiad {

RowLocation TableLayout::Locate(RowId row) const {
  const uint64_t r = row.value();
  // Shards are equal in size as a rule (the last may be shorter), so the first guess is right.
  const TableShard* shard = &shards[std::min<uint64_t>(r / shards.front().rows, shards.size() - 1)];
  if (r - shard->first_row >= shard->rows) {
    const auto next = std::upper_bound(shards.begin(), shards.end(), r,
                                       [](uint64_t value, const TableShard& s) { return value < s.first_row; });
    shard = &*(next - 1);
  }
  const uint32_t bytes = disk_row_bytes();
  return {shard->file, shard->offset + (r - shard->first_row) * bytes, bytes};
}

}  // namespace pleiad
