// What this kernel has, for tests that need it.
#pragma once

#include <liburing.h>

#include <cerrno>

namespace pleiad {

// False only where io_uring is not built in or forbidden; every other error is for the test to meet.
inline bool KernelHasUring() {
  io_uring ring{};
  const int error = ::io_uring_queue_init(2, &ring, 0);
  if (error == 0) ::io_uring_queue_exit(&ring);
  return error != -ENOSYS && error != -EPERM;
}

}  // namespace pleiad
