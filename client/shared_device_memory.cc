#include "client/shared_device_memory.h"

namespace pleiad::client {

absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> SharedDeviceMemory::Create(std::shared_ptr<Connection> connection,
                                                                               const DeviceMemoryHandles& handles) {
  absl::StatusOr<std::unique_ptr<RegionLease>> lease = connection->AttachDeviceMemory(handles);
  if (!lease.ok()) return lease.status();
  return std::unique_ptr<SharedDeviceMemory>(new SharedDeviceMemory(std::move(connection), *std::move(lease)));
}

}  // namespace pleiad::client
