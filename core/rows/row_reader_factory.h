// Chooses the row reader that this machine and these files allow.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_reader.h"

namespace pleiad {

struct UringSystem;

enum class ReaderKind : uint8_t { kAuto, kIoUring, kPread };

// O_DIRECT, which passes the page cache by. The pread reader is always buffered.
enum class DirectMode : uint8_t { kAuto, kRequire, kOff };

struct RowReaderOptions {
  ReaderKind kind = ReaderKind::kAuto;
  DirectMode direct = DirectMode::kAuto;
  uint32_t threads = 0;  // rings of io_uring, threads of pread, at most 64; 0: 1 ring, 8 threads
  uint32_t depth = 128;  // reads in flight of each ring, 1 to 4096
};

// `files` outlive the reader; their descriptors are opened anew where O_DIRECT is used. Blocks shortly.
// With kAuto what is refused is done without, first O_DIRECT, then io_uring; info().detail of the reader says what runs
// and why. FailedPrecondition, naming the flag (--reader, --direct) and the reason: kIoUring or kRequire is refused by
// the kernel or the file system, or they contradict kPread. InvalidArgument: threads or depth is out of range.
absl::StatusOr<std::unique_ptr<RowReader>> CreateRowReader(const std::vector<CheckpointFile>& files,
                                                           const RowReaderOptions& options);

// With the system calls of `system`, which outlives the reader.
absl::StatusOr<std::unique_ptr<RowReader>> CreateRowReader(const std::vector<CheckpointFile>& files,
                                                           const RowReaderOptions& options, const UringSystem& system);

}  // namespace pleiad
