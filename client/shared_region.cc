#include "client/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pleiad::client {
namespace {

absl::Status Error(int error, const std::string& what) {
  return absl::ErrnoToStatus(error, absl::StrCat("shared memory: ", what));
}

// A name that no other process takes.
std::string FreshName() {
  std::random_device random;
  return absl::StrFormat("pleiad-%d-%08x%08x", ::getpid(), random(), random());
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(std::shared_ptr<Connection> connection,
                                                                   const std::string& shm_dir, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes 0: must be positive");
  const std::string name = FreshName();
  const std::string path = absl::StrCat(shm_dir, "/", name);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Error(errno, path);
  // Taken now: a full file system would be a signal later.
  int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) {
    ::unlink(path.c_str());
    return Error(error, absl::StrCat(path, " of ", bytes, " bytes"));
  }
  std::unique_ptr<SharedRegion> region(
      new SharedRegion(std::move(connection), path, absl::MakeSpan(static_cast<std::byte*>(memory), bytes)));
  absl::StatusOr<std::unique_ptr<RegionLease>> lease = region->connection_->AttachFile(name, bytes);
  if (!lease.ok()) return lease.status();
  region->lease_ = *std::move(lease);
  return region;
}

SharedRegion::~SharedRegion() {
  lease_ = nullptr;
  ::munmap(data_.data(), data_.size());
  ::unlink(path_.c_str());
}

}  // namespace pleiad::client
