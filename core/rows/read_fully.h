// The retry loop around pread(2), apart from files and threads so that a script can stand in for the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace pleiad {

// As pread(2): bytes read, 0 at the end of the file, or -1 with errno set.
using PreadFn = absl::FunctionRef<ssize_t(int fd, void* buffer, size_t count, off_t offset)>;

// Reads without progress that EAGAIN and EIO are given before the read fails.
inline constexpr int kMaxFailedReads = 4;

// Fills `destination` from `offset` on; blocks. Short reads are continued, EINTR is retried without limit, EAGAIN
// and EIO kMaxFailedReads times without progress. DataLoss naming `path` and the offset reached: the file ends
// before the range does, or an error stayed.
absl::Status ReadFully(PreadFn pread_fn, int fd, const std::string& path, uint64_t offset,
                       absl::Span<std::byte> destination);

}  // namespace pleiad
