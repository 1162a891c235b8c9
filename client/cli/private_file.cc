#include "client/cli/private_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace pleiad::cli {
namespace {

bool WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status WritePrivateFile(const std::string& path, absl::Span<const absl::string_view> parts) {
  std::string partial = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(partial.data(), O_CLOEXEC));  // 0600
  bool written = fd.valid();
  for (size_t i = 0; written && i < parts.size(); ++i) written = WriteAll(fd.get(), parts[i]);
  if (written && ::fsync(fd.get()) == 0 && ::rename(partial.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  if (fd.valid()) ::unlink(partial.c_str());
  return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

}  // namespace pleiad::cli
