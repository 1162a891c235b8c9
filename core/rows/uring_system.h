// The system calls whose refusal decides which reader runs; tests put refusals in their place.
#pragma once

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>

#include <functional>

namespace pleiad {

struct UringSystem {
  // As liburing's: 0 or more, or -errno.
  std::function<int(unsigned entries, io_uring* ring, io_uring_params* params)> setup = ::io_uring_queue_init_params;
  std::function<int(io_uring* ring, const iovec* buffers, unsigned count)> register_buffers =
      ::io_uring_register_buffers;
  std::function<int(io_uring* ring, const int* fds, unsigned count)> register_files = ::io_uring_register_files;
  std::function<int(io_uring* ring, unsigned wait_for)> submit_and_wait = ::io_uring_submit_and_wait;
  // As open(2) and statx(2) on a descriptor: -1 with errno set.
  std::function<int(const char* path, int flags)> open = [](const char* path, int flags) {
    return ::open(path, flags);
  };
  std::function<int(int fd, unsigned mask, struct statx* out)> statx = [](int fd, unsigned mask, struct statx* out) {
    return ::statx(fd, "", AT_EMPTY_PATH, mask, out);
  };
};

}  // namespace pleiad
