// Which memory of clients is open in this process: the host's half of Device::Import and ImportFile. It knows no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/device/client_memory.h"

namespace pleiad {

// The calls that sharing memory takes. Handles have kIpcHandleBytes. IsDone is called from any thread, the others by
// one thread at a time.
class IpcDriver {
 public:
  struct Allocation {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };

  virtual ~IpcDriver() = default;

  // As ClientMemoryHandles has it.
  virtual const std::string& gpu_uuid() const = 0;
  // A handle is open once at a time. InvalidArgument: it names no memory of this GPU.
  virtual absl::StatusOr<Allocation> OpenMemory(const std::string& handle) = 0;
  virtual void CloseMemory(std::byte* data) = 0;
  // InvalidArgument: it names no event that can be used so on this GPU. One of kRecorded is recorded by that.
  enum class EventUse : uint8_t { kAsked, kRecorded };
  virtual absl::StatusOr<void*> OpenEvent(const std::string& handle, EventUse use) = 0;
  virtual void CloseEvent(void* event) = 0;
  // FailedPrecondition: it cannot be asked.
  virtual absl::StatusOr<bool> IsDone(void* event) = 0;

  // Holds the pages that [data, data + bytes) of the host's memory has now, whatever becomes of what they belong to,
  // and lets the device reach them at these addresses. FailedPrecondition, ResourceExhausted.
  virtual absl::Status Pin(std::byte* data, uint64_t bytes) = 0;
  // False: they may still be held, and must stay mapped.
  virtual bool Unpin(std::byte* data) = 0;
};

// Thread-safe. An allocation is open once, however many of its parts are imported, and closed on a thread of the
// table's after the last of them: closing may wait for the GPU. What was imported keeps the table.
class ImportTable : public std::enable_shared_from_this<ImportTable> {
 public:
  static std::shared_ptr<ImportTable> Create(std::unique_ptr<IpcDriver> driver);
  // Closes what is still to be closed.
  ~ImportTable();
  ImportTable(const ImportTable&) = delete;
  ImportTable& operator=(const ImportTable&) = delete;

  // As Device::Import.
  absl::StatusOr<std::shared_ptr<ClientMemory>> Import(const ClientMemoryHandles& handles);
  // As Device::ImportFile.
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                           std::shared_ptr<void> until_released);

  // Blocks until nothing waits to be closed.
  void WaitUntilClosed();

 private:
  class Part;
  class FilePages;
  struct Opened {
    IpcDriver::Allocation allocation;
    uint64_t parts = 0;
  };
  struct Closing {
    std::string memory;
    void* ready = nullptr;
    void* done = nullptr;
    absl::Span<std::byte> pages;  // instead: what is mapped of a file
    std::shared_ptr<void> until_released;
  };

  explicit ImportTable(std::unique_ptr<IpcDriver> driver);

  absl::StatusOr<IpcDriver::Allocation> Open(const std::string& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_mutex_);
  void Close(const std::string& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_mutex_);
  void CloseLater(Closing closing) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseLoop();

  const std::unique_ptr<IpcDriver> driver_;

  Mutex driver_mutex_;  // held while the driver opens or closes
  absl::flat_hash_map<std::string, Opened> opened_ ABSL_GUARDED_BY(driver_mutex_);  // by handle

  Mutex mutex_;
  CondVar changed_;
  std::deque<Closing> closing_ ABSL_GUARDED_BY(mutex_);
  bool closes_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is at one
  bool exit_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread closer_;
};

}  // namespace pleiad
