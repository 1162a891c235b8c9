// One io_uring with its registered files and buffers, without any knowledge of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/rows/read_queue.h"
#include "core/rows/uring_system.h"

namespace pleiad {

// Created by any thread, then used by one: the first to call Start.
class UringRing {
 public:
  // Entries of the ring beside `depth` reads: the wake-up and a cancel.
  static constexpr uint32_t kExtraEntries = 2;

  // `fds` stay open, `buffers` and `system` stay valid until the ring is gone. Where files or buffers cannot be
  // registered the ring works without and notes() says so. FailedPrecondition with the reason: the kernel refuses an
  // io_uring.
  static absl::StatusOr<std::unique_ptr<UringRing>> Create(uint32_t depth, std::vector<int> fds,
                                                           absl::Span<std::byte> buffers, const UringSystem& system);
  // Nothing may be in flight.
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // What went without, each with its reason.
  const std::vector<std::string>& notes() const { return notes_; }

  void Start();

  // Queue entries for SubmitAndWait; at most depth + kExtraEntries between two of them.
  void QueueRead(const ReadOp& op);
  void QueueFdRead(int fd, uint64_t* value, uint64_t user_data);
  void QueueCancelAll(uint64_t user_data);

  // Hands the queued entries over and waits for one completion. 0 or -errno.
  int SubmitAndWait();

  // Calls `fn` for every completion that is there; returns how many.
  uint32_t Reap(absl::FunctionRef<void(uint64_t user_data, int32_t result)> fn);

  // Names what was queued and the kernel never took, after SubmitAndWait failed for good. From then on the ring may
  // only Wait and Reap.
  void TakeBack(absl::FunctionRef<void(uint64_t user_data)> fn);
  void Wait();  // for one completion

 private:
  UringRing(std::vector<int> fds, const UringSystem& system) : fds_(std::move(fds)), system_(system) {}

  const std::vector<int> fds_;
  const UringSystem& system_;
  io_uring ring_{};
  bool live_ = false;
  bool fixed_files_ = false;
  bool fixed_buffers_ = false;
  std::vector<std::string> notes_;
};

}  // namespace pleiad
