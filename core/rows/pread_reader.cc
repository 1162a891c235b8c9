#include "core/rows/pread_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/rows/read_fully.h"

namespace pleiad {
namespace {

// Reads a thread takes at once; bounds how long the first of them waits for the last.
constexpr size_t kMaxTake = 16;
constexpr uint32_t kLongRead = 1 << 20;  // bytes

absl::Status StoppingError() { return absl::CancelledError("the row reader is stopping"); }

class PreadReader : public RowReader {
 public:
  PreadReader(const std::vector<CheckpointFile>& files, uint32_t threads, const std::string& why)
      : files_(files),
        thread_count_(std::max(threads, 1u)),
        info_{.name = "pread",
              .detail = absl::StrCat("buffered, ", thread_count_, " threads", why.empty() ? "" : "; ", why)} {
    for (uint32_t i = 0; i < thread_count_; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~PreadReader() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
    std::deque<Item> left;
    {
      MutexLock lock(&mutex_);
      left.swap(queue_);
    }
    for (const Item& item : left) Deliver(item, StoppingError());
  }

  const RowReaderInfo& info() const override { return info_; }

  RowReaderStats stats() const override {
    const uint64_t bytes = bytes_read_.load(std::memory_order_relaxed);
    return {.bytes_read = bytes, .bytes_used = bytes, .reads_in_flight = in_flight_.load(std::memory_order_relaxed)};
  }

  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    const auto shared_fn = std::make_shared<const ResultFn>(std::move(on_results));
    in_flight_.fetch_add(reads.size(), std::memory_order_relaxed);
    // The kernel reads the whole of a long one at once, where pread would go from window to window.
    for (const RowRead& read : reads) {
      if (read.bytes < kLongRead || read.file >= files_.size()) continue;
      ::posix_fadvise(files_[read.file].fd.get(), static_cast<off_t>(read.offset), read.bytes, POSIX_FADV_WILLNEED);
    }
    bool queued = false;
    {
      MutexLock lock(&mutex_);
      queued = !stopping_;
      for (const RowRead& read : reads) {
        if (queued) queue_.push_back({read, shared_fn});
      }
    }
    if (!queued) {
      for (const RowRead& read : reads) Deliver({read, shared_fn}, StoppingError());
    } else if (reads.size() == 1) {
      wake_.NotifyOne();
    } else {
      wake_.NotifyAll();
    }
  }

 private:
  struct Item {
    RowRead read;
    std::shared_ptr<const ResultFn> on_results;
  };

  void Deliver(const Item& item, absl::Status status) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    const RowReadResult result{.id = item.read.id, .status = std::move(status)};
    (*item.on_results)(absl::MakeConstSpan(&result, 1));
  }

  // Moves an even share of the queue to `taken`; false when the reader stops.
  bool Take(std::vector<Item>& taken) {
    MutexLock lock(&mutex_);
    while (queue_.empty() && !stopping_) wake_.Wait(&mutex_);
    if (stopping_) return false;
    const size_t share = (queue_.size() + thread_count_ - 1) / thread_count_;
    for (size_t i = std::min(share, kMaxTake); i > 0; --i) {
      taken.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    return true;
  }

  void Work() {
    std::vector<Item> taken;
    std::vector<RowReadResult> results;
    while (Take(taken)) {
      // Results of one Submit go out together.
      for (size_t first = 0; first < taken.size();) {
        size_t end = first;
        for (; end < taken.size() && taken[end].on_results == taken[first].on_results; ++end) {
          results.push_back({.id = taken[end].read.id, .status = Read(taken[end].read)});
          if (results.back().status.ok()) bytes_read_.fetch_add(taken[end].read.bytes, std::memory_order_relaxed);
        }
        in_flight_.fetch_sub(results.size(), std::memory_order_relaxed);
        (*taken[first].on_results)(results);
        results.clear();
        first = end;
      }
      taken.clear();
    }
  }

  absl::Status Read(const RowRead& read) const {
    if (read.file >= files_.size()) {
      return absl::DataLossError(absl::StrCat("file index ", read.file, " of ", files_.size(), " files"));
    }
    const CheckpointFile& file = files_[read.file];
    return ReadFully(::pread, file.fd.get(), file.path, read.offset, absl::MakeSpan(read.destination, read.bytes));
  }

  const std::vector<CheckpointFile>& files_;
  const uint32_t thread_count_;
  const RowReaderInfo info_;

  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> in_flight_{0};

  Mutex mutex_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<RowReader> CreatePreadReader(const std::vector<CheckpointFile>& files, uint32_t threads,
                                             std::string why) {
  return std::make_unique<PreadReader>(files, threads, why);
}

}  // namespace pleiad
