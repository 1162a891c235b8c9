#include "server/watched_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

FileStamp StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size = static_cast<uint64_t>(info.st_size),
          .modified_ns = Nanoseconds(info.st_mtim),
          .changed_ns = Nanoseconds(info.st_ctim)};
}

absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag, const std::string& path, Secrecy secrecy) {
  const auto refuse = [&](absl::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", path, ": ", rule));
  };
  const auto fail = [&] {
    const int error = errno;
    const bool of_machine = error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
    const absl::Status status = refuse(std::strerror(error));
    return of_machine ? absl::UnavailableError(status.message()) : status;
  };
  // A pipe would keep open() waiting.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return fail();
  if (!S_ISREG(info.st_mode)) return refuse("must be a plain file");
  if (secrecy == Secrecy::kSecret && (info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return refuse("others can read or write it; it holds secrets (chmod o= takes that away)");
  }
  std::string bytes(kMaxBytes + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail();
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMaxBytes) return refuse("has more than 1 MiB");
  bytes.resize(size);
  return bytes;
}

}  // namespace pleiad
