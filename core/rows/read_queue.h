// What an io_uring reader asks of the kernel next, and what each completion means: aligned windows, joined rows, short
// reads, retries, results. No system call is made here, so that a script can stand in for the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/rows/index_pool.h"
#include "core/rows/row_reader.h"

namespace pleiad {

struct QueueFile {
  std::string path;        // for messages
  uint32_t alignment = 1;  // of offset, length and memory of a read; a power of two, 1 where reads are buffered
};

struct ReadQueueOptions {
  uint32_t depth = 128;          // operations with the kernel at once; each has a buffer
  uint32_t buffer_bytes = 8192;  // a multiple of twice every alignment; longer windows are cut
  uint32_t join_bytes = 4096;    // windows that touch become one operation up to this size
};

// One read for the kernel: `bytes` at `offset` of `file` into `buffer`.
struct ReadOp {
  uint64_t user_data = 0;  // never 0, never kOwnUserData; another one each time
  FileIndex file = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  std::byte* buffer = nullptr;
};

struct FinishedRead {
  uint32_t call = 0;  // as given to Add
  RowReadResult result;
};

// Not thread-safe. Every RowRead added is finished once: OK with its bytes copied to its destination, or with an error
// that concerns itself alone. EINTR, EAGAIN, EIO and short reads without progress are given kMaxFailedReads
// (read_fully.h) tries, then a joined operation is taken apart and each row tried by itself.
class ReadQueue {
 public:
  static constexpr uint64_t kOwnUserData = ~uint64_t{0};  // for operations of the caller's own

  enum class Match : uint8_t { kTaken, kStale };

  // `buffers` [depth * buffer_bytes], aligned as the files ask, outlives the queue.
  ReadQueue(std::vector<QueueFile> files, const ReadQueueOptions& options, std::byte* buffers);

  // Queues reads of one call. Those that need no I/O or cannot have any are finished here: DataLoss where the file
  // index or the range is impossible, Cancelled after Stop.
  void Add(absl::Span<const RowRead> reads, uint32_t call, std::vector<FinishedRead>& finished);

  // Writes operations to hand to the kernel and returns how many; the buffers are the kernel's until Complete.
  size_t Next(absl::Span<ReadOp> ops);

  // `result` as a CQE has it: bytes or -errno. kStale, and nothing happens, where `user_data` is not that of an
  // operation handed out and still awaited: late, duplicate or foreign.
  Match Complete(uint64_t user_data, int32_t result, std::vector<FinishedRead>& finished);

  // Finishes as Cancelled what is not with the kernel; what is ends with its completion, without further tries.
  void Stop(std::vector<FinishedRead>& finished);

  uint32_t in_flight() const { return in_flight_; }  // operations with the kernel
  bool idle() const { return reads_.taken() == 0; }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_used() const { return bytes_used_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Read {
    uint64_t id = 0;
    uint32_t call = 0;
    uint32_t pieces = 0;  // unfinished
    absl::Status status;
  };
  // The part of a read that one window serves: all of it unless it was cut.
  struct Piece {
    uint64_t offset = 0;
    std::byte* destination = nullptr;
    uint32_t bytes = 0;
    uint32_t read = kNone;
    uint32_t next = kNone;  // of the same window
  };
  struct Window {
    FileIndex file = 0;
    uint64_t offset = 0;
    uint32_t bytes = 0;
    uint32_t needed = 0;   // bytes from the start to the end of the last piece
    uint32_t done = 0;     // where the next try starts; aligned
    uint32_t reached = 0;  // bytes that are in the buffer
    int failures = 0;      // tries without progress
    uint32_t slot = kNone;
    uint32_t first_piece = kNone;
    uint32_t last_piece = kNone;
    uint32_t next = kNone;  // of the same list
  };
  struct WindowList {
    uint32_t first = kNone;
    uint32_t last = kNone;
  };
  struct Slot {
    uint32_t window = kNone;
    uint32_t generation = 0;
    bool with_kernel = false;
  };
  struct Key {
    uint64_t offset;
    FileIndex file;
    uint32_t index;
  };

  std::byte* Buffer(uint32_t slot) const { return buffers_ + size_t{slot} * options_.buffer_bytes; }
  void AddCut(const RowRead& read, uint32_t index);
  void AddPiece(uint32_t window, const Piece& piece);
  void Append(WindowList& list, uint32_t window);
  uint32_t PopFront(WindowList& list);
  void Hand(uint32_t window, ReadOp& op);
  void Retry(uint32_t window, int error, std::vector<FinishedRead>& finished);
  void FinishWindow(uint32_t window, int error, std::vector<FinishedRead>& finished);
  void FinishPiece(uint32_t piece, absl::Status status, std::vector<FinishedRead>& finished);
  absl::Status PieceError(const Window& window, const Piece& piece, int error) const;

  const std::vector<QueueFile> files_;
  const ReadQueueOptions options_;
  std::byte* const buffers_;

  IndexPool<Read> reads_;
  IndexPool<Piece> pieces_;
  IndexPool<Window> windows_;
  WindowList waiting_;  // without a slot
  WindowList retries_;  // keep their slot
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<Key> keys_;  // scratch of Add
  uint32_t in_flight_ = 0;
  bool stopping_ = false;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_used_ = 0;
};

}  // namespace pleiad
