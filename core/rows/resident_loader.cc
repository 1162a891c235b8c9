#include "core/rows/resident_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/mutex.h"

namespace pleiad {
namespace {

using std::chrono::steady_clock;

constexpr auto kPollInterval = std::chrono::milliseconds(200);

uint64_t DiskBytes(const LoadChunk& chunk) { return chunk.rows * chunk.table->disk_row_bytes(); }

// A chunk with its rows, once they are read.
struct LoadedChunk {
  const LoadChunk* chunk = nullptr;
  std::vector<std::byte> rows;
};

// Shared with the callbacks of reads, which may come after a load that stopped early: `chunk` of a LoadedChunk is
// not followed then.
class LoadState {
 public:
  explicit LoadState(const std::vector<LoadChunk>& chunks) : chunks_(chunks), left_(chunks.size()) {}

  // The next chunk to read, or null when there is none or the load has stopped.
  const LoadChunk* NextChunk() {
    MutexLock lock(&mutex_);
    if (!status_.ok() || next_ == chunks_.size()) return nullptr;
    return &chunks_[next_++];
  }

  void ReadDone(std::unique_ptr<LoadedChunk> loaded, const absl::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (status.ok()) {
        ready_.push_back(std::move(loaded));
      } else if (status_.ok()) {
        status_ = status;
      }
    }
    changed_.NotifyAll();
  }

  // Waits for a chunk; null when all are written or the load has stopped.
  std::unique_ptr<LoadedChunk> TakeReady() {
    MutexLock lock(&mutex_);
    while (ready_.empty() && left_ > 0 && status_.ok()) changed_.Wait(&mutex_);
    if (ready_.empty() || !status_.ok()) return nullptr;
    std::unique_ptr<LoadedChunk> loaded = std::move(ready_.back());
    ready_.pop_back();
    return loaded;
  }

  void Written(uint64_t bytes) {
    {
      MutexLock lock(&mutex_);
      bytes_written_ += bytes;
      if (--left_ > 0) return;
    }
    changed_.NotifyAll();
  }

  void Stop(const absl::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (status_.ok()) status_ = status;
    }
    changed_.NotifyAll();
  }

  // Waits until the load has ended or `deadline`. True when it has ended.
  bool AwaitEnd(steady_clock::time_point deadline, uint64_t& bytes_written) {
    MutexLock lock(&mutex_);
    while (left_ > 0 && status_.ok() && steady_clock::now() < deadline) changed_.WaitUntil(&mutex_, deadline);
    bytes_written = bytes_written_;
    return left_ == 0 || !status_.ok();
  }

  absl::Status status() {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const std::vector<LoadChunk>& chunks_;

  Mutex mutex_;
  CondVar changed_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_written_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<LoadedChunk>> ready_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Reads the next chunk into `buffer`, if one is left.
void StartRead(const std::shared_ptr<LoadState>& state, RowReader& reader, std::unique_ptr<LoadedChunk> buffer) {
  const LoadChunk* chunk = state->NextChunk();
  if (chunk == nullptr) return;
  buffer->chunk = chunk;
  buffer->rows.resize(DiskBytes(*chunk));
  const RowRead read{.file = chunk->file,
                     .offset = chunk->offset,
                     .bytes = static_cast<uint32_t>(buffer->rows.size()),
                     .destination = buffer->rows.data()};
  // std::function copies its callable, so the buffer travels in a shared holder.
  auto holder = std::make_shared<std::unique_ptr<LoadedChunk>>(std::move(buffer));
  reader.Submit(absl::MakeConstSpan(&read, 1), [state, holder](absl::Span<const RowReadResult> results) {
    state->ReadDone(std::move(*holder), results.front().status);
  });
}

void WriteReady(const std::shared_ptr<LoadState>& state, RowReader& reader, const ResidentLoadOptions& options) {
  std::vector<std::byte> rounded;
  while (std::unique_ptr<LoadedChunk> loaded = state->TakeReady()) {
    const LoadChunk& chunk = *loaded->chunk;
    absl::Span<const std::byte> rows = loaded->rows;
    if (chunk.table->dtype == DType::kF32) {
      rounded.resize(chunk.rows * chunk.table->arena_row_bytes());
      RoundToBf16(loaded->rows.data(), chunk.rows * chunk.table->head_dim, rounded.data());
      rows = rounded;
    }
    if (absl::Status status = options.write_arena(chunk.first_slot, rows); !status.ok()) {
      state->Stop(status);
      return;
    }
    state->Written(DiskBytes(chunk));
    StartRead(state, reader, std::move(loaded));
  }
}

}  // namespace

std::vector<LoadChunk> PlanLoad(absl::Span<const TableLayout* const> tables, absl::Span<const uint64_t> first_slots) {
  std::vector<LoadChunk> chunks;
  for (size_t layer = 0; layer < tables.size(); ++layer) {
    const TableLayout& table = *tables[layer];
    const uint64_t rows_per_chunk = std::max<uint64_t>(1, kLoadChunkBytes / table.disk_row_bytes());
    for (const TableShard& shard : table.shards) {
      for (uint64_t row = 0; row < shard.rows; row += rows_per_chunk) {
        chunks.push_back({.table = &table,
                          .file = shard.file,
                          .offset = shard.offset + row * table.disk_row_bytes(),
                          .rows = std::min(rows_per_chunk, shard.rows - row),
                          .first_slot = Slot(static_cast<uint32_t>(first_slots[layer] + shard.first_row + row))});
      }
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const LoadChunk& a, const LoadChunk& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  return chunks;
}

absl::Status LoadChunks(const std::vector<LoadChunk>& chunks, RowReader& reader, const ResidentLoadOptions& options) {
  const uint32_t thread_count = std::max(options.threads, 1u);
  const auto start = steady_clock::now();
  LoadProgress progress;
  for (const LoadChunk& chunk : chunks) progress.bytes_total += DiskBytes(chunk);

  const auto state = std::make_shared<LoadState>(chunks);
  for (uint32_t i = 0; i < kReadsPerThread * thread_count; ++i)
    StartRead(state, reader, std::make_unique<LoadedChunk>());
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < thread_count; ++i) {
    threads.emplace_back([&] { WriteReady(state, reader, options); });
  }
  for (bool ended = false; !ended;) {
    if (options.cancelled && options.cancelled()) state->Stop(absl::CancelledError("loading of the table was stopped"));
    const auto now = steady_clock::now();
    ended = state->AwaitEnd(now + kPollInterval, progress.bytes_read);
    const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
    progress.bytes_per_second = seconds > 0 ? static_cast<double>(progress.bytes_read) / seconds : 0;
    if (options.on_progress) options.on_progress(progress);
  }
  for (std::thread& thread : threads) thread.join();
  return state->status();
}

}  // namespace pleiad
