#include "core/rows/direct_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

absl::Status Refused(const CheckpointFile& file, absl::string_view what, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat(file.path, ": ", what, ": ", std::generic_category().message(error)));
}

bool SameFile(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

absl::StatusOr<UniqueFd> Reopen(const CheckpointFile& file, const UringSystem& system) {
  constexpr int kFlags = O_RDONLY | O_DIRECT | O_CLOEXEC;
  // Leads to the open file itself, whatever its path names by now.
  UniqueFd fd(system.open(absl::StrCat("/proc/self/fd/", file.fd.get()).c_str(), kFlags));
  if (!fd.valid() && (errno == ENOENT || errno == EACCES || errno == EPERM)) {  // no /proc, or not for us
    fd = UniqueFd(system.open(file.path.c_str(), kFlags));
  }
  if (!fd.valid()) return Refused(file, "open with O_DIRECT", errno);
  if (!SameFile(fd.get(), file.fd.get())) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, ": the path leads to another file than the one that is open"));
  }
  return fd;
}

// What statx tells; 0 where it does not, or an error where the file has no direct reads.
absl::StatusOr<uint32_t> AlignmentTold(const CheckpointFile& file, int fd, const UringSystem& system) {
#ifdef STATX_DIOALIGN
  struct statx told {};
  if (system.statx(fd, STATX_DIOALIGN, &told) != 0 || (told.stx_mask & STATX_DIOALIGN) == 0) return 0;
  if (told.stx_dio_offset_align == 0) return Refused(file, "direct reads", EOPNOTSUPP);
  const uint32_t alignment = std::max({told.stx_dio_offset_align, told.stx_dio_mem_align, uint32_t{1}});
  if (alignment > kMaxDirectAlignment) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, ": direct reads ask for an alignment of ", alignment, " bytes"));
  }
  return std::bit_ceil(alignment);
#else
  return 0;
#endif
}

}  // namespace

absl::StatusOr<DirectFile> OpenDirect(const CheckpointFile& file, const UringSystem& system) {
  absl::StatusOr<UniqueFd> fd = Reopen(file, system);
  if (!fd.ok()) return fd.status();
  const absl::StatusOr<uint32_t> told = AlignmentTold(file, fd->get(), system);
  if (!told.ok()) return told.status();

  const std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(kMaxDirectAlignment, 2 * kMaxDirectAlignment), &std::free);
  // Tried also where it was told: file systems exist that take the flag and refuse the read. The buffer is aligned
  // to no more than what is tried.
  for (uint32_t alignment = *told == 0 ? 512 : *told; alignment <= kMaxDirectAlignment; alignment *= 2) {
    if (::pread(fd->get(), static_cast<char*>(memory.get()) + alignment, alignment, 0) >= 0) {
      return DirectFile{.fd = *std::move(fd), .alignment = alignment};
    }
    if (errno != EINVAL) break;
  }
  return Refused(file, "direct read", errno);
}

}  // namespace pleiad
