// Memory that a client shares with the device, so that no tensor is copied by the CPU: the device's own, whose tensors
// kernels read and write in place, or pages of a file of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace pleiad {

// Of every handle below.
inline constexpr size_t kIpcHandleBytes = 64;

// Part of an allocation of another process, as CUDA's calls for sharing between processes name it.
struct ClientMemoryHandles {
  std::string memory;       // cudaIpcMemHandle_t of the allocation
  std::string gpu_uuid;     // of the GPU it lies on: "GPU-" and 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12
  std::string ready_event;  // cudaIpcEventHandle_t; the client records it behind what it writes for a step
  std::string done_event;   // cudaIpcEventHandle_t; the device records it behind every batch that uses the memory
  uint64_t offset = 0;      // bytes [offset, offset + bytes) of the allocation
  uint64_t bytes = 0;
};

// Open for as long as it lives. Who destroys it last does not wait for the device; nothing on the device may use it
// then. Thread-safe.
class ClientMemory {
 public:
  virtual ~ClientMemory() = default;

  // Where it begins, for parts of TensorMemory::kDevice or, of a file, kPinned. Two of one allocation show by their
  // addresses what they share.
  virtual std::byte* data() const = 0;
  virtual uint64_t bytes() const = 0;
  // Whether what the client's ready event was last recorded behind is done; true where it never was, or there is no
  // such event. Does not block. FailedPrecondition: the event cannot be asked.
  virtual absl::StatusOr<bool> IsReady() const = 0;
  // The device's own; null: nobody waits for it.
  virtual void* done_event() const = 0;
};

}  // namespace pleiad
