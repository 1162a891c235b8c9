#include "core/rows/uring_reader.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/rows/uring_ring.h"
#include "core/rows/uring_worker.h"

namespace pleiad {
namespace {

constexpr uint32_t kMinBufferBytes = 8192;
constexpr size_t kBufferAlignment = 4096;

// A call of fewer reads for each ring goes to one ring: waking another costs more than it brings.
constexpr size_t kMinShare = 64;

class UringReader : public RowReader {
 public:
  UringReader(std::vector<UringFile> files, std::vector<std::unique_ptr<UringWorker>> workers, RowReaderInfo info)
      : files_(std::move(files)), info_(std::move(info)), workers_(std::move(workers)) {}

  const RowReaderInfo& info() const override { return info_; }

  RowReaderStats stats() const override {
    RowReaderStats sum;
    for (const auto& worker : workers_) {
      const RowReaderStats part = worker->stats();
      sum.bytes_read += part.bytes_read;
      sum.bytes_used += part.bytes_used;
      sum.reads_in_flight += part.reads_in_flight;
    }
    return sum;
  }

  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    const auto shared_fn = std::make_shared<const ResultFn>(std::move(on_results));
    const size_t rings = std::clamp<size_t>(reads.size() / kMinShare, 1, workers_.size());
    uint32_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
    for (size_t left = rings; left > 0; --left) {
      const size_t share = reads.size() / left;
      workers_[turn++ % workers_.size()]->Submit(reads.first(share), shared_fn);
      reads.remove_prefix(share);
    }
  }

 private:
  const std::vector<UringFile> files_;
  const RowReaderInfo info_;
  std::atomic<uint32_t> turn_{0};
  // Destroyed before the files, one after the other; a Submit that meets one on the way out is answered Cancelled.
  const std::vector<std::unique_ptr<UringWorker>> workers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowReader>> CreateUringReader(std::vector<UringFile> files,
                                                             const UringReaderOptions& options,
                                                             const UringSystem& system) {
  std::vector<QueueFile> about;
  std::vector<int> fds;
  ReadQueueOptions queue_options;
  queue_options.depth = options.depth;
  queue_options.buffer_bytes = kMinBufferBytes;
  size_t memory_alignment = kBufferAlignment;
  for (const UringFile& file : files) {
    about.push_back(file.about);
    fds.push_back(file.fd);
    queue_options.buffer_bytes = std::max(queue_options.buffer_bytes, 2 * file.about.alignment);
    memory_alignment = std::max<size_t>(memory_alignment, file.about.alignment);
  }

  std::vector<std::unique_ptr<UringWorker>> workers;
  std::vector<std::string> notes;
  for (uint32_t i = 0; i < options.rings; ++i) {
    const size_t bytes = size_t{options.depth} * queue_options.buffer_bytes;
    WindowMemory memory(static_cast<std::byte*>(std::aligned_alloc(memory_alignment, bytes)));
    PLEIAD_ASSIGN_OR_RETURN(std::unique_ptr<UringRing> ring,
                            UringRing::Create(options.depth, fds, absl::MakeSpan(memory.get(), bytes), system));
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
    if (!wake.valid()) {
      return absl::FailedPreconditionError(absl::StrCat("eventfd: ", std::generic_category().message(errno)));
    }
    if (notes.empty()) notes = ring->notes();
    workers.push_back(
        std::make_unique<UringWorker>(std::move(ring), std::move(memory), about, queue_options, std::move(wake)));
  }
  RowReaderInfo info{.name = "io_uring",
                     .detail = absl::StrCat(options.how, ", ", options.rings, options.rings == 1 ? " ring" : " rings",
                                            " of depth ", options.depth)};
  for (const std::string& note : notes) absl::StrAppend(&info.detail, ", ", note);
  return std::make_unique<UringReader>(std::move(files), std::move(workers), std::move(info));
}

}  // namespace pleiad
