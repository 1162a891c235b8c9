#include "client/cli/plan_disk.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "core/base/mutex.h"
#include "core/model/table_layout.h"

namespace pleiad::cli {
namespace {

// What the reader's threads hand back. A read's id is the place of its buffer.
struct Returned {
  Mutex mutex;
  CondVar arrived;
  std::vector<uint64_t> ids ABSL_GUARDED_BY(mutex);
  absl::Status first_error ABSL_GUARDED_BY(mutex);

  void Add(absl::Span<const RowReadResult> results) {
    MutexLock lock(&mutex);
    for (const RowReadResult& result : results) {
      ids.push_back(result.id);
      if (first_error.ok()) first_error = result.status;
    }
    arrived.NotifyOne();
  }

  // Waits for at least one.
  absl::Status Take(std::vector<uint64_t>* out) {
    MutexLock lock(&mutex);
    while (ids.empty()) arrived.Wait(&mutex);
    out->insert(out->end(), ids.begin(), ids.end());
    ids.clear();
    return first_error;
  }
};

}  // namespace

absl::StatusOr<DiskRate> MeasureReads(const Checkpoint& checkpoint, RowReader* reader, uint32_t depth,
                                      std::chrono::steady_clock::duration time) {
  const std::vector<PleLayer>& layers = checkpoint.layers();
  const size_t row_bytes = layers.front().table.disk_row_bytes();
  std::vector<std::byte> buffers(depth * row_bytes);
  std::vector<uint64_t> free(depth);
  for (uint32_t i = 0; i < depth; ++i) free[i] = i;

  std::mt19937_64 rng(depth);
  Returned returned;
  std::vector<RowRead> reads;
  DiskRate rate;
  rate.depth = depth;
  absl::Status status;
  size_t in_flight = 0;
  const auto start = std::chrono::steady_clock::now();
  auto now = start;
  while (true) {
    if (status.ok() && (now < start + time || rate.reads == 0)) {
      reads.clear();
      for (const uint64_t id : free) {
        const TableLayout& table = layers[rng() % layers.size()].table;
        const RowLocation at = table.Locate(RowId(rng() % table.rows));
        reads.push_back({id, at.file, at.offset, at.bytes, buffers.data() + id * row_bytes});
      }
      in_flight += free.size();
      free.clear();
      reader->Submit(reads, [&returned](absl::Span<const RowReadResult> results) { returned.Add(results); });
    }
    if (in_flight == 0) break;
    const size_t before = free.size();
    status = returned.Take(&free);
    in_flight -= free.size() - before;
    rate.reads += free.size() - before;
    now = std::chrono::steady_clock::now();
  }
  if (!status.ok()) return status;
  rate.reads_per_second = static_cast<double>(rate.reads) / std::chrono::duration<double>(now - start).count();
  return rate;
}

}  // namespace pleiad::cli
