#include "core/rows/uring_ring.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

std::string Message(int error) { return std::generic_category().message(error); }

}  // namespace

absl::StatusOr<std::unique_ptr<UringRing>> UringRing::Create(uint32_t depth, std::vector<int> fds,
                                                             absl::Span<std::byte> buffers, const UringSystem& system) {
  std::unique_ptr<UringRing> ring(new UringRing(std::move(fds), system));
  // Completions are worked through by the waiting thread, when it asks; kernels before 6.1 know neither flag.
  // Disabled, so that the thread that starts the ring becomes its one issuer.
  io_uring_params params{};
  params.flags = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  int error = system.setup(depth + kExtraEntries, &ring->ring_, &params);
  if (error == -EINVAL) {
    params = {};
    params.flags = IORING_SETUP_R_DISABLED;
    error = system.setup(depth + kExtraEntries, &ring->ring_, &params);
  }
  if (error < 0) return absl::FailedPreconditionError(absl::StrCat("io_uring is refused: ", Message(-error)));
  ring->live_ = true;

  if (const int refused = system.register_files(&ring->ring_, ring->fds_.data(), ring->fds_.size()); refused < 0) {
    ring->notes_.push_back(absl::StrCat("files not registered: ", Message(-refused)));
  } else {
    ring->fixed_files_ = true;
  }
  const iovec pool{.iov_base = buffers.data(), .iov_len = buffers.size()};
  if (const int refused = system.register_buffers(&ring->ring_, &pool, 1); refused < 0) {
    ring->notes_.push_back(absl::StrCat("buffers of ", buffers.size(), " bytes not registered: ", Message(-refused),
                                        refused == -ENOMEM ? " (RLIMIT_MEMLOCK)" : ""));
  } else {
    ring->fixed_buffers_ = true;
  }
  return ring;
}

UringRing::~UringRing() {
  if (live_) ::io_uring_queue_exit(&ring_);
}

// liburing 2.3 declares io_uring_enable_rings and does not export it.
void UringRing::Start() { ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0); }

void UringRing::QueueRead(const ReadOp& op) {
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  const int fd = fixed_files_ ? static_cast<int>(op.file) : fds_[op.file];
  if (fixed_buffers_) {
    ::io_uring_prep_read_fixed(entry, fd, op.buffer, op.bytes, op.offset, 0);
  } else {
    ::io_uring_prep_read(entry, fd, op.buffer, op.bytes, op.offset);
  }
  if (fixed_files_) entry->flags |= IOSQE_FIXED_FILE;
  entry->user_data = op.user_data;
}

void UringRing::QueueFdRead(int fd, uint64_t* value, uint64_t user_data) {
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  ::io_uring_prep_read(entry, fd, value, sizeof *value, 0);
  entry->user_data = user_data;
}

void UringRing::QueueCancelAll(uint64_t user_data) {
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  ::io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY);
  entry->user_data = user_data;
}

int UringRing::SubmitAndWait() {
  const int result = system_.submit_and_wait(&ring_, 1);
  return result < 0 ? result : 0;
}

uint32_t UringRing::Reap(absl::FunctionRef<void(uint64_t, int32_t)> fn) {
  io_uring_cqe* completion = nullptr;
  unsigned head = 0;
  uint32_t count = 0;
  io_uring_for_each_cqe(&ring_, head, completion) {
    fn(completion->user_data, completion->res);
    ++count;
  }
  ::io_uring_cq_advance(&ring_, count);
  return count;
}

void UringRing::TakeBack(absl::FunctionRef<void(uint64_t)> fn) {
  const io_uring_sq& sq = ring_.sq;
  for (unsigned at = io_uring_smp_load_acquire(sq.khead); at != sq.sqe_tail; ++at) {
    fn(sq.sqes[at & sq.ring_mask].user_data);
  }
}

void UringRing::Wait() {
  io_uring_cqe* completion = nullptr;
  ::io_uring_wait_cqe(&ring_, &completion);
}

}  // namespace pleiad
