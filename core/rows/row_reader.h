// Reads byte ranges of files in batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/model/table_layout.h"

namespace pleiad {

struct RowRead {
  uint64_t id = 0;  // the caller's, echoed in the result
  FileIndex file = 0;
  uint64_t offset = 0;  // bytes from the start of the file; no alignment asked
  uint32_t bytes = 0;
  std::byte* destination = nullptr;  // `bytes` long; the reader's until the result is delivered
};

struct RowReadResult {
  uint64_t id = 0;
  // OK: the destination holds all bytes. DataLoss: end of file or an I/O error that stayed after bounded retries
  // (the message names file and offset). Cancelled: the reader is stopping.
  absl::Status status;
};

struct RowReaderInfo {
  std::string name;    // "pread", "io_uring"
  std::string detail;  // direct or buffered, and why
};

// Since the reader was made; all zero from a reader that does not count.
struct RowReaderStats {
  uint64_t bytes_read = 0;       // asked of the files and got, padding of windows and repeated reads included
  uint64_t bytes_used = 0;       // of the ranges read, that reached a destination
  uint64_t reads_in_flight = 0;  // RowReads submitted that have no result yet; a gauge
};

// Thread-safe. Each read gets exactly one result, in any order, never under another id.
class RowReader {
 public:
  using ResultFn = std::function<void(absl::Span<const RowReadResult>)>;

  // Delivers results that are still due (as Cancelled where not begun), then returns.
  virtual ~RowReader() = default;

  virtual const RowReaderInfo& info() const = 0;

  virtual RowReaderStats stats() const { return {}; }

  // Queues the reads; `on_results` is called one or more times, from a thread of the reader or inside Submit,
  // until every read of this call has its result. It must not block.
  virtual void Submit(absl::Span<const RowRead> reads, ResultFn on_results) = 0;
};

}  // namespace pleiad
