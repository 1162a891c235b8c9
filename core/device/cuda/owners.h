// Move-only owners of what CUDA hands out. Made at start, freed at the end; none is made while steps run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/device/cuda/cuda_status.h"

namespace pleiad::cuda {

// A handle and how it is freed; an empty one frees nothing.
template <typename Handle, auto kFree>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != Handle{}) kFree(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_{};
};

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

enum class StreamPriority { kNormal, kHigh };
enum class EventTiming { kOff, kOn };

inline absl::StatusOr<Stream> MakeStream(StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t stream = nullptr;
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                               priority == StreamPriority::kHigh ? greatest : least),
                                  "cudaStreamCreateWithPriority"));
  return Stream(stream);
}

inline absl::StatusOr<Event> MakeEvent(EventTiming timing) {
  cudaEvent_t event = nullptr;
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, timing == EventTiming::kOn ? cudaEventDefault : cudaEventDisableTiming),
               "cudaEventCreateWithFlags"));
  return Event(event);
}

// Memory with its size. The address of pinned memory is the same for host and device.
template <auto kFree>
class Memory {
 public:
  Memory() = default;
  Memory(void* data, uint64_t size) : data_(data), size_(size) {}

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_.get());
  }
  uint64_t size() const { return size_; }

 private:
  Owned<void*, kFree> data_;
  uint64_t size_ = 0;
};

using DeviceMemoryBlock = Memory<cudaFree>;
using PinnedMemoryBlock = Memory<cudaFreeHost>;

// Uninitialised. ResourceExhausted names `what` and the size. No bytes: an empty block.
absl::StatusOr<DeviceMemoryBlock> AllocateDevice(absl::string_view what, uint64_t bytes);
absl::StatusOr<PinnedMemoryBlock> AllocatePinned(absl::string_view what, uint64_t bytes);

}  // namespace pleiad::cuda
