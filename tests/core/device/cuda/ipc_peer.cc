#include "tests/core/device/cuda/ipc_peer.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "core/device/cuda/cuda_ipc.h"

namespace pleiad::testing {
namespace {

bool ReadAll(int fd, void* data, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::read(fd, static_cast<char*>(data) + done, bytes - done);
    if (got <= 0) return false;
    done += static_cast<uint64_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* data, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t put = ::send(fd, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
    if (put <= 0) return false;
    done += static_cast<uint64_t>(put);
  }
  return true;
}

}  // namespace

// The other side.
class IpcPeer::Process {
 public:
  explicit Process(int fd) : fd_(fd) {}

  void Serve() {
    Command command;
    while (ReadAll(fd_, &command, sizeof(command))) {
      std::string data(command.what == Do::kPut ? command.bytes : 0, '\0');
      if (!ReadAll(fd_, data.data(), data.size())) return;
      Reply reply{};
      reply.error = Run(command, data, &reply);
      if (!WriteAll(fd_, &reply, sizeof(reply)) || !WriteAll(fd_, data.data(), data.size())) return;
    }
  }

 private:
  cudaError_t Run(const Command& command, std::string& data, Reply* reply) {
    switch (command.what) {
      case Do::kAllocate:
        return Allocate(command.bytes, reply);
      case Do::kPut: {
        const cudaError_t error =
            cudaMemcpyAsync(data_ + command.offset, data.data(), data.size(), cudaMemcpyHostToDevice, stream_);
        data.clear();
        return error != cudaSuccess ? error : cudaEventRecord(ready_, stream_);
      }
      case Do::kGet: {
        data.resize(command.bytes);
        cudaError_t error = cudaStreamWaitEvent(stream_, done_, 0);
        if (error == cudaSuccess) {
          error = cudaMemcpyAsync(data.data(), data_ + command.offset, command.bytes, cudaMemcpyDeviceToHost, stream_);
        }
        return error != cudaSuccess ? error : cudaStreamSynchronize(stream_);
      }
      case Do::kHold: {
        held_.store(true);
        const cudaError_t error = cudaLaunchHostFunc(
            stream_, [](void* held) { static_cast<std::atomic<bool>*>(held)->wait(true); }, &held_);
        return error != cudaSuccess ? error : cudaEventRecord(ready_, stream_);
      }
      case Do::kLetGo:
        held_.store(false);
        held_.notify_all();
        return cudaStreamSynchronize(stream_);
    }
    return cudaErrorInvalidValue;
  }

  cudaError_t Allocate(uint64_t bytes, Reply* reply) {
    cudaError_t error = cudaSuccess;
    const auto also = [&error](cudaError_t next) {
      if (error == cudaSuccess) error = next;
    };
    if (stream_ == nullptr) {
      also(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      for (cudaEvent_t* event : {&ready_, &done_}) {
        also(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventInterprocess));
      }
    }
    also(cudaFree(data_));
    also(cudaMalloc(reinterpret_cast<void**>(&data_), bytes));
    cudaIpcMemHandle_t memory{};
    cudaIpcEventHandle_t ready{}, done{};
    also(cudaIpcGetMemHandle(&memory, data_));
    also(cudaIpcGetEventHandle(&ready, ready_));
    also(cudaIpcGetEventHandle(&done, done_));
    std::memcpy(reply->memory, &memory, sizeof(memory));
    std::memcpy(reply->ready, &ready, sizeof(ready));
    std::memcpy(reply->done, &done, sizeof(done));
    const std::string uuid = cuda::GpuUuid(0).value_or("");
    std::memcpy(reply->uuid, uuid.c_str(), uuid.size());
    return error;
  }

  const int fd_;
  char* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
  std::atomic<bool> held_{false};
};

IpcPeer::IpcPeer() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(fds[0]);
    Process(fds[1]).Serve();
    ::_exit(0);
  }
  socket_ = UniqueFd(fds[0]);
  ::close(fds[1]);
}

IpcPeer::~IpcPeer() { Kill(); }

void IpcPeer::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

IpcPeer::Reply IpcPeer::Ask(Do what, uint64_t offset, uint64_t bytes, const std::string& data) {
  const Command command{what, offset, bytes};
  Reply reply{};
  EXPECT_TRUE(WriteAll(socket_.get(), &command, sizeof(command)) && WriteAll(socket_.get(), data.data(), data.size()) &&
              ReadAll(socket_.get(), &reply, sizeof(reply)));
  EXPECT_EQ(reply.error, 0) << cudaGetErrorString(static_cast<cudaError_t>(reply.error));
  return reply;
}

ClientMemoryHandles IpcPeer::Allocate(uint64_t bytes) {
  const Reply reply = Ask(Do::kAllocate, 0, bytes);
  const auto handle = [](const char* from) { return std::string(from, kIpcHandleBytes); };
  return {handle(reply.memory), reply.uuid, handle(reply.ready), handle(reply.done), 0, bytes};
}

void IpcPeer::Put(uint64_t offset, const std::string& bytes) { Ask(Do::kPut, offset, bytes.size(), bytes); }

std::string IpcPeer::Get(uint64_t offset, uint64_t bytes) {
  Ask(Do::kGet, offset, bytes);
  std::string out(bytes, '\0');
  EXPECT_TRUE(ReadAll(socket_.get(), out.data(), bytes));
  return out;
}

void IpcPeer::Hold() { Ask(Do::kHold, 0, 0); }
void IpcPeer::LetGo() { Ask(Do::kLetGo, 0, 0); }

}  // namespace pleiad::testing
