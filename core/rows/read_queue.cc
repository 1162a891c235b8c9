#include "core/rows/read_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/rows/read_fully.h"
#include "core/rows/read_window.h"

namespace pleiad {
namespace {

// Beside errno values, for FinishWindow.
constexpr int kEndOfFile = 0;

constexpr uint64_t kMaxOffset = std::numeric_limits<int64_t>::max() / 2;

bool MayPass(int error) { return error == EINTR || error == EAGAIN || error == EIO || error == ECANCELED; }

absl::Status StoppingError() { return absl::CancelledError("the row reader is stopping"); }

}  // namespace

ReadQueue::ReadQueue(std::vector<QueueFile> files, const ReadQueueOptions& options, std::byte* buffers)
    : files_(std::move(files)), options_(options), buffers_(buffers), slots_(options.depth) {
  for (uint32_t slot = options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

void ReadQueue::Add(absl::Span<const RowRead> reads, uint32_t call, std::vector<FinishedRead>& finished) {
  keys_.clear();
  for (uint32_t i = 0; i < reads.size(); ++i) {
    const RowRead& read = reads[i];
    absl::Status status;
    if (stopping_) {
      status = StoppingError();
    } else if (read.file >= files_.size()) {
      status = absl::DataLossError(absl::StrCat("file index ", read.file, " of ", files_.size(), " files"));
    } else if (read.offset > kMaxOffset) {
      status = absl::DataLossError(absl::StrCat(files_[read.file].path, ": no file reaches offset ", read.offset));
    } else if (read.bytes > 0) {
      keys_.push_back({.offset = read.offset, .file = read.file, .index = i});
      continue;
    }
    finished.push_back({.call = call, .result = {.id = read.id, .status = std::move(status)}});
  }
  std::sort(keys_.begin(), keys_.end(),
            [](const Key& a, const Key& b) { return a.file != b.file ? a.file < b.file : a.offset < b.offset; });

  uint32_t open = kNone;  // the window that the next read may join
  for (const Key& key : keys_) {
    const RowRead& read = reads[key.index];
    const uint32_t index = reads_.Take({.id = read.id, .call = call, .pieces = 1, .status = absl::OkStatus()});
    const ReadWindow window = CoveringWindow(read.offset, read.bytes, files_[read.file].alignment);
    if (window.bytes > options_.buffer_bytes) {
      AddCut(read, index);
      open = kNone;
      continue;
    }
    bool joins = false;
    if (open != kNone && windows_[open].file == read.file) {
      const Window& last = windows_[open];
      const uint64_t joined = std::max(last.offset + last.bytes, window.offset + window.bytes) - last.offset;
      joins = window.offset <= last.offset + last.bytes && joined <= std::max(options_.join_bytes, last.bytes);
      if (joins) windows_[open].bytes = static_cast<uint32_t>(joined);
    }
    if (!joins) {
      Window fresh;
      fresh.file = read.file;
      fresh.offset = window.offset;
      fresh.bytes = static_cast<uint32_t>(window.bytes);
      open = windows_.Take(fresh);
      Append(waiting_, open);
    }
    AddPiece(
        open,
        {.offset = read.offset, .destination = read.destination, .bytes = read.bytes, .read = index, .next = kNone});
  }
}

void ReadQueue::AddCut(const RowRead& read, uint32_t index) {
  const ReadWindow all = CoveringWindow(read.offset, read.bytes, files_[read.file].alignment);
  const uint64_t read_end = read.offset + read.bytes;
  uint32_t pieces = 0;
  for (uint64_t at = all.offset; at < read_end; at += options_.buffer_bytes) {
    Window part;
    part.file = read.file;
    part.offset = at;
    part.bytes = static_cast<uint32_t>(std::min<uint64_t>(options_.buffer_bytes, all.offset + all.bytes - at));
    const uint64_t first = std::max(at, read.offset);
    const uint64_t end = std::min(at + part.bytes, read_end);
    const uint32_t window = windows_.Take(part);
    Append(waiting_, window);
    AddPiece(window, {.offset = first,
                      .destination = read.destination + (first - read.offset),
                      .bytes = static_cast<uint32_t>(end - first),
                      .read = index,
                      .next = kNone});
    ++pieces;
  }
  reads_[index].pieces = pieces;
}

void ReadQueue::AddPiece(uint32_t window, const Piece& piece) {
  const uint32_t index = pieces_.Take(piece);
  Window& to = windows_[window];
  to.needed = std::max(to.needed, static_cast<uint32_t>(piece.offset + piece.bytes - to.offset));
  if (to.first_piece == kNone) {
    to.first_piece = index;
  } else {
    pieces_[to.last_piece].next = index;
  }
  to.last_piece = index;
}

void ReadQueue::Append(WindowList& list, uint32_t window) {
  windows_[window].next = kNone;
  if (list.first == kNone) {
    list.first = window;
  } else {
    windows_[list.last].next = window;
  }
  list.last = window;
}

uint32_t ReadQueue::PopFront(WindowList& list) {
  const uint32_t window = list.first;
  list.first = windows_[window].next;
  if (list.first == kNone) list.last = kNone;
  return window;
}

size_t ReadQueue::Next(absl::Span<ReadOp> ops) {
  size_t count = 0;
  for (; count < ops.size() && retries_.first != kNone; ++count) Hand(PopFront(retries_), ops[count]);
  for (; count < ops.size() && waiting_.first != kNone && !free_slots_.empty(); ++count) {
    const uint32_t window = PopFront(waiting_);
    windows_[window].slot = free_slots_.back();
    free_slots_.pop_back();
    Hand(window, ops[count]);
  }
  return count;
}

void ReadQueue::Hand(uint32_t window, ReadOp& op) {
  const Window& what = windows_[window];
  Slot& slot = slots_[what.slot];
  slot.window = window;
  // All ones is left out for kOwnUserData, 0 for "none".
  do {
    ++slot.generation;
  } while (slot.generation == 0 || slot.generation == ~uint32_t{0});
  slot.with_kernel = true;
  ++in_flight_;
  op = {.user_data = uint64_t{slot.generation} << 32 | what.slot,
        .file = what.file,
        .offset = what.offset + what.done,
        .bytes = what.bytes - what.done,
        .buffer = Buffer(what.slot) + what.done};
}

ReadQueue::Match ReadQueue::Complete(uint64_t user_data, int32_t result, std::vector<FinishedRead>& finished) {
  const uint64_t slot_index = user_data & ~uint32_t{0};
  if (slot_index >= slots_.size()) return Match::kStale;
  Slot& slot = slots_[slot_index];
  if (!slot.with_kernel || slot.generation != user_data >> 32) return Match::kStale;
  slot.with_kernel = false;
  --in_flight_;

  const uint32_t index = slot.window;
  Window& window = windows_[index];
  if (result < 0) {
    Retry(index, -result, finished);
    return Match::kTaken;
  }
  bytes_read_ += static_cast<uint32_t>(result);
  const uint32_t reached = window.done + std::min(static_cast<uint32_t>(result), window.bytes - window.done);
  const bool progress = reached > window.reached;
  window.reached = std::max(window.reached, reached);
  if (window.reached >= window.needed || result == 0) {
    FinishWindow(index, kEndOfFile, finished);
    return Match::kTaken;
  }
  // An unaligned end is read again from the block it lies in, which at the end of the file gains nothing.
  window.done = static_cast<uint32_t>(AlignDown(window.reached, files_[window.file].alignment));
  if (progress) window.failures = 0;
  if (progress && !stopping_) {
    Append(retries_, index);
  } else {
    Retry(index, kEndOfFile, finished);
  }
  return Match::kTaken;
}

// A try that gained nothing.
void ReadQueue::Retry(uint32_t window, int error, std::vector<FinishedRead>& finished) {
  if (stopping_) {
    FinishWindow(window, ECANCELED, finished);
  } else if ((error == kEndOfFile || MayPass(error)) && ++windows_[window].failures < kMaxFailedReads) {
    Append(retries_, window);
  } else {
    FinishWindow(window, error, finished);
  }
}

// Finishes the pieces that lie within what was reached, and the others with `error`.
void ReadQueue::FinishWindow(uint32_t index, int error, std::vector<FinishedRead>& finished) {
  Window window = windows_[index];
  // A try that failed may have left anything in its part of the buffer.
  if (error != kEndOfFile) window.reached = std::min(window.reached, window.done);
  const uint64_t reached = window.offset + window.reached;
  const bool alone = window.first_piece == window.last_piece;
  for (uint32_t at = window.first_piece; at != kNone;) {
    const Piece piece = pieces_[at];
    if (piece.offset + piece.bytes <= reached) {
      std::memcpy(piece.destination, Buffer(window.slot) + (piece.offset - window.offset), piece.bytes);
      bytes_used_ += piece.bytes;
      FinishPiece(at, absl::OkStatus(), finished);
    } else if (error == kEndOfFile || stopping_ || alone) {
      FinishPiece(at, PieceError(window, piece, error), finished);
    } else {
      // The error may concern a neighbour alone.
      const ReadWindow own = CoveringWindow(piece.offset, piece.bytes, files_[window.file].alignment);
      Window fresh;
      fresh.file = window.file;
      fresh.offset = own.offset;
      fresh.bytes = static_cast<uint32_t>(own.bytes);
      const uint32_t by_itself = windows_.Take(fresh);
      Append(waiting_, by_itself);
      pieces_[at].next = kNone;
      windows_[by_itself].needed = static_cast<uint32_t>(piece.offset + piece.bytes - own.offset);
      windows_[by_itself].first_piece = windows_[by_itself].last_piece = at;
    }
    at = piece.next;
  }
  if (window.slot != kNone) free_slots_.push_back(window.slot);
  windows_.Return(index);
}

void ReadQueue::FinishPiece(uint32_t piece, absl::Status status, std::vector<FinishedRead>& finished) {
  const uint32_t index = pieces_[piece].read;
  pieces_.Return(piece);
  Read& read = reads_[index];
  read.status.Update(std::move(status));
  if (--read.pieces > 0) return;
  finished.push_back({.call = read.call, .result = {.id = read.id, .status = std::move(read.status)}});
  reads_.Return(index);
}

absl::Status ReadQueue::PieceError(const Window& window, const Piece& piece, int error) const {
  if (stopping_ && error == ECANCELED) return StoppingError();
  const std::string& path = files_[window.file].path;
  const uint64_t end = piece.offset + piece.bytes;
  const uint64_t at = std::clamp(window.offset + window.reached, piece.offset, end);
  if (error == kEndOfFile) {
    return absl::DataLossError(
        absl::StrCat(path, ": file ends at offset ", at, ", ", end - at, " bytes short of the range"));
  }
  return absl::DataLossError(absl::StrCat(path, ": read of ", end - at, " bytes at offset ", at,
                                          " failed: ", std::generic_category().message(error)));
}

void ReadQueue::Stop(std::vector<FinishedRead>& finished) {
  stopping_ = true;
  while (retries_.first != kNone) FinishWindow(PopFront(retries_), ECANCELED, finished);
  while (waiting_.first != kNone) FinishWindow(PopFront(waiting_), ECANCELED, finished);
}

}  // namespace pleiad
