// Where the rows of one layer's table lie on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/numeric.h"
#include "core/base/strong_id.h"

namespace pleiad {

// Index into Checkpoint::files().
using FileIndex = uint32_t;

struct TableShard {
  FileIndex file = 0;
  uint64_t offset = 0;  // bytes from the start of the file to the shard's first row
  uint64_t first_row = 0;
  uint64_t rows = 0;
};

struct RowLocation {
  FileIndex file = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
};

// Immutable after loading; thread-safe.
struct TableLayout {
  std::vector<TableShard> shards;  // ascending first_row, no gaps
  uint64_t rows = 0;               // in the files; at least the rows the hash can name
  uint32_t head_dim = 0;           // values per row
  DType dtype = DType::kBf16;      // as stored: kBf16, kF32 or kF8E4M3
  float scale = 1.0f;              // of kF8E4M3; 1 elsewhere

  // Bytes of a row in the files.
  uint32_t disk_row_bytes() const { return head_dim * static_cast<uint32_t>(ByteSize(dtype)); }
  // As kept in staging and arena: F32 rows are rounded once to BF16, the others stay as they are.
  DType arena_dtype() const { return dtype == DType::kF32 ? DType::kBf16 : dtype; }
  uint32_t arena_row_bytes() const { return head_dim * static_cast<uint32_t>(ByteSize(arena_dtype())); }

  // `row` < rows.
  RowLocation Locate(RowId row) const;
};

}  // namespace pleiad
