// Another process with memory on the GPU, which does what the test says. Forked before the test's process touches the
// GPU: a process that has cannot be.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/unique_fd.h"
#include "core/device/client_memory.h"

namespace pleiad::testing {

// Used by one thread. Calls block until the other process has done it, and fail the test where it cannot.
class IpcPeer {
 public:
  IpcPeer();
  // Kills it.
  ~IpcPeer();
  IpcPeer(const IpcPeer&) = delete;
  IpcPeer& operator=(const IpcPeer&) = delete;

  // Its one allocation; an earlier one is freed.
  ClientMemoryHandles Allocate(uint64_t bytes);
  // Writes to it and records the ready event.
  void Put(uint64_t offset, const std::string& bytes);
  // Reads from it behind the done event.
  std::string Get(uint64_t offset, uint64_t bytes);
  // Records the ready event behind work that does not end before LetGo.
  void Hold();
  void LetGo();
  void Kill();

 private:
  enum class Do : uint32_t { kAllocate, kPut, kGet, kHold, kLetGo };
  struct Command {
    Do what;
    uint64_t offset, bytes;
  };
  struct Reply {
    int error;
    char memory[kIpcHandleBytes], ready[kIpcHandleBytes], done[kIpcHandleBytes], uuid[64];
  };
  class Process;

  Reply Ask(Do what, uint64_t offset, uint64_t bytes, const std::string& data = "");

  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace pleiad::testing
