#include "core/rows/read_fully.h"

#include <sched.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace pleiad {

absl::Status ReadFully(PreadFn pread_fn, int fd, const std::string& path, uint64_t offset,
                       absl::Span<std::byte> destination) {
  size_t done = 0;
  int failed = 0;
  while (done < destination.size()) {
    const ssize_t got =
        pread_fn(fd, destination.data() + done, destination.size() - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
      failed = 0;
      continue;
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path, ": file ends at offset ", offset + done, ", ",
                                              destination.size() - done, " bytes short of the range"));
    }
    const int error = errno;
    if (error == EINTR) continue;
    if ((error == EAGAIN || error == EIO) && ++failed < kMaxFailedReads) {
      sched_yield();
      continue;
    }
    return absl::DataLossError(absl::StrCat(path, ": read of ", destination.size() - done, " bytes at offset ",
                                            offset + done, " failed: ", std::generic_category().message(error)));
  }
  return absl::OkStatus();
}

}  // namespace pleiad
