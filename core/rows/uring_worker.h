// One io_uring, the thread that reads through it, and the queue between callers and the thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/rows/index_pool.h"
#include "core/rows/read_queue.h"
#include "core/rows/row_reader.h"
#include "core/rows/uring_ring.h"

namespace pleiad {

// Page-aligned memory for the windows of a ring.
struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using WindowMemory = std::unique_ptr<std::byte, FreeMemory>;

class UringWorker {
 public:
  // Takes the ring, not yet started, and the memory that was registered with it.
  UringWorker(std::unique_ptr<UringRing> ring, WindowMemory memory, std::vector<QueueFile> files,
              const ReadQueueOptions& options, UniqueFd wake_fd);
  // Cancels, waits for what the kernel still has, delivers all that is due.
  ~UringWorker();
  UringWorker(const UringWorker&) = delete;
  UringWorker& operator=(const UringWorker&) = delete;

  // Thread-safe; wakes the thread at most once until it has looked. After the destructor has begun: Cancelled, inside.
  void Submit(absl::Span<const RowRead> reads, const std::shared_ptr<const RowReader::ResultFn>& on_results);

  RowReaderStats stats() const;

 private:
  struct Call {
    std::shared_ptr<const RowReader::ResultFn> on_results;
    size_t left = 0;  // reads without a result
  };
  struct Inbox {
    std::vector<RowRead> reads;
    std::vector<Call> calls;  // in the order of their reads
  };
  enum class Mode : uint8_t { kRunning, kStopping };

  void Run();
  Mode TakeInbox();
  void BeginStop();
  void HandOver();
  void AwaitCompletions();
  void Break(int error);
  void Take(uint64_t user_data, int32_t result);
  void Deliver();

  const UniqueFd wake_fd_;  // eventfd
  const WindowMemory memory_;

  Mutex mutex_;
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // the thread will look into the inbox anyway
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<uint64_t> reads_in_flight_{0};
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> bytes_used_{0};

  // The thread's alone.
  const std::unique_ptr<UringRing> ring_;
  ReadQueue queue_;
  Inbox taken_;
  IndexPool<Call> calls_;
  std::vector<ReadOp> ops_;
  std::vector<FinishedRead> finished_;
  std::vector<RowReadResult> results_;
  uint64_t wake_value_ = 0;
  bool wake_armed_ = false;
  bool cancel_awaited_ = false;
  bool stop_begun_ = false;
  int fruitless_ = 0;  // submissions refused in a row
  int broken_ = 0;     // errno, once the kernel takes no more submissions

  std::thread thread_;
};

}  // namespace pleiad
