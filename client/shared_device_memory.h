// Memory of a GPU that this process shares with a server that uses the same GPU, so that tensors never leave it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/types.h"

namespace pleiad::client {

// Attached to the server for as long as it lives; the memory is the user's. Thread-safe. A span that a step names is
// the server's until the step's callback has run, and the allocation stays until this is destroyed. Before a step names
// it the ready event is recorded behind whatever writes its highway, and behind whatever still reads what its output
// will overwrite; the server waits for that. The done event is recorded behind the step. After the server has
// restarted, or the connection has broken, steps that name it are refused (kInvalidField): share anew.
class SharedDeviceMemory {
 public:
  // Blocks for a round trip. Unimplemented: regions are off, or not for this connection; else the server's refusal.
  static absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> Create(std::shared_ptr<Connection> connection,
                                                                    const DeviceMemoryHandles& handles);
  SharedDeviceMemory(const SharedDeviceMemory&) = delete;
  SharedDeviceMemory& operator=(const SharedDeviceMemory&) = delete;

  // [offset, offset + bytes) of what was shared, for a step; it must begin at a multiple of 16 bytes of the allocation.
  RegionSpan Span(uint64_t offset, uint64_t bytes) const { return {lease_->id(), offset, bytes}; }

 private:
  SharedDeviceMemory(std::shared_ptr<Connection> connection, std::unique_ptr<RegionLease> lease)
      : connection_(std::move(connection)), lease_(std::move(lease)) {}

  const std::shared_ptr<Connection> connection_;  // outlives the lease
  const std::unique_ptr<RegionLease> lease_;
};

}  // namespace pleiad::client
