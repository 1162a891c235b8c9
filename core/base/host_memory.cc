#include "core/base/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace pleiad {

absl::StatusOr<HostMemory> HostMemory::Allocate(absl::string_view purpose, uint64_t bytes, HugePages huge_pages) {
  HostMemory memory;
  if (bytes == 0) return memory;
  void* data = MAP_FAILED;
  errno = ENOMEM;
  if (bytes <= static_cast<uint64_t>(std::numeric_limits<ptrdiff_t>::max())) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes, " bytes of host memory cannot be had: ", std::strerror(errno)));
  }
  // Advice only: a system without huge pages serves the same.
  if (huge_pages == HugePages::kAdvise) ::madvise(data, bytes, MADV_HUGEPAGE);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace pleiad
