// The bulk read behind the resident row store.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/model/table_layout.h"
#include "core/rows/resident_row_store.h"
#include "core/rows/row_reader.h"

namespace pleiad {

// Consecutive rows of one shard, read at once.
struct LoadChunk {
  const TableLayout* table = nullptr;
  FileIndex file = 0;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t rows = 0;
  Slot first_slot;
};

// Bytes of a chunk on disk, at least one row.
inline constexpr uint64_t kLoadChunkBytes = 4 << 20;
// Chunks that are being read or written for each thread that writes: two reads go on while it writes the third.
inline constexpr uint32_t kReadsPerThread = 3;

// Cuts all shards of `tables` [layers] into chunks, ordered by file and offset. `first_slots` [layers].
std::vector<LoadChunk> PlanLoad(absl::Span<const TableLayout* const> tables, absl::Span<const uint64_t> first_slots);

// Reads the chunks and hands them to options.write_arena. Blocks; statuses as LoadResidentRowStore.
absl::Status LoadChunks(const std::vector<LoadChunk>& chunks, RowReader& reader, const ResidentLoadOptions& options);

}  // namespace pleiad
