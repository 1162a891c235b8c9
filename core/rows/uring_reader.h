// RowReader over io_uring: rings of fixed depth, one thread each, direct or buffered.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/rows/read_queue.h"
#include "core/rows/row_reader.h"
#include "core/rows/uring_system.h"

namespace pleiad {

struct UringFile {
  QueueFile about;
  int fd = -1;     // open for reading; with O_DIRECT where about.alignment is more than 1
  UniqueFd owned;  // closes fd, where the reader is to
};

struct UringReaderOptions {
  uint32_t rings = 1;
  uint32_t depth = 128;  // reads in flight of each ring
  std::string how;       // of info().detail: direct or buffered, and why
};

// Index of `files` = FileIndex; descriptors not owned outlive the reader, as `system` does. Results of one Submit come
// from several threads where there are several rings. FailedPrecondition with the reason: the kernel refuses an
// io_uring.
absl::StatusOr<std::unique_ptr<RowReader>> CreateUringReader(std::vector<UringFile> files,
                                                             const UringReaderOptions& options,
                                                             const UringSystem& system);

}  // namespace pleiad
