// Opens a file for O_DIRECT reads and asks it for the alignment that they need.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/model/checkpoint.h"
#include "core/rows/uring_system.h"

namespace pleiad {

// An alignment beyond this is refused.
inline constexpr uint32_t kMaxDirectAlignment = 65536;

struct DirectFile {
  UniqueFd fd;             // O_DIRECT
  uint32_t alignment = 0;  // of offset, length and memory, bytes; a power of two
};

// The same inode as `file` under a descriptor of its own; `file.fd` is not touched. The alignment is statx's, or where
// the kernel does not tell, the smallest from 512 on with which a read of the first block works. Blocks.
// FailedPrecondition, naming the path and the reason: O_DIRECT is refused, or the path leads to another file by now.
absl::StatusOr<DirectFile> OpenDirect(const CheckpointFile& file, const UringSystem& system);

}  // namespace pleiad
