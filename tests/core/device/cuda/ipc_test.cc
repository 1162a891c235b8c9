// Memory of other processes that a GPU reads and writes by itself: on it, opened and refused, and in files.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "core/base/unique_fd.h"
#include "tests/core/device/cuda/ipc_peer.h"
#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/stage_rig.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;
using testing::IpcPeer;

constexpr uint64_t kBytes = 8 << 20;

// Before any test.
class Peers final : public ::testing::Environment {
 public:
  void SetUp() override {
    for (auto& peer : peers_) peer = std::make_unique<IpcPeer>();
  }
  void TearDown() override {
    for (auto& peer : peers_) peer = nullptr;
  }
  static IpcPeer& At(size_t i) { return *peers_.at(i); }

 private:
  static inline std::array<std::unique_ptr<IpcPeer>, 2> peers_;
};
const ::testing::Environment* const kPeers = ::testing::AddGlobalTestEnvironment(new Peers);

class CudaIpcTest : public OnGpu<::testing::Test> {
 protected:
  static StageRig MakeRig() {
    DeviceOptions options;
    options.batch_invariant = true;
    options.carries = 8;
    options.max_tokens = 128;
    return RandomRig(MakeModel({.hidden = 64, .hc = 4, .embed = 64}, 211), 512, 212, options,
                     testing::TestDevice::kCuda);
  }
  static std::string TextOf(const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // The batch of one step with its tensors in `memory`, input at byte 0 and output at `output`; what came out.
  static std::string RunIn(StageRig& rig, RigBatch& batch, IpcPeer& peer, ClientMemory& memory, uint64_t output) {
    TensorPart& part = batch.plan.parts.at(0);
    peer.Put(0, TextOf(batch.inputs.at(0)).substr(0, InputBytes(rig, part)));
    while (!*memory.IsReady()) std::this_thread::yield();
    part.memory = TensorMemory::kDevice;
    part.input = memory.data();
    part.output = memory.data() + output;
    batch.plan.client_memory = {&memory};
    const Ticket ticket = rig.Start(batch);
    // The other process waits for the done event alone.
    EXPECT_TRUE(rig.device().Wait(ticket).ok());
    return peer.Get(output, part.num_tokens * rig.channels() * ByteSize(part.output_dtype));
  }
  static uint64_t InputBytes(const StageRig& rig, const TensorPart& part) {
    return part.num_tokens * rig.channels() * ByteSize(part.input_dtype);
  }
};

TEST_F(CudaIpcTest, StepsInAnotherProcesssMemoryEqualStepsInTheHosts) {
  StageRig rig = MakeRig();
  IpcPeer& peer = Peers::At(0);
  const auto memory = rig.device().Import(peer.Allocate(kBytes));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(rig.device().info().gpu_uuid.size(), 40u);
  RigCarry calm = rig.NewCarry(), shared = rig.NewCarry();
  uint32_t first = 0;
  for (const uint32_t count : {1u, 2u, 7u, 64u, 65u, 128u}) {
    for (const bool in_place : {false, true}) {
      RigFormat format;
      format.input = format.output = count % 2 == 0 ? DType::kBf16 : DType::kF32;
      format.kind = count % 3 == 0 ? OutputKind::kHighway : OutputKind::kDelta;
      RigBatch wanted = rig.Make({{.carry = &calm, .first = first, .count = count}}, format);
      ASSERT_TRUE(rig.device().Wait(rig.Start(wanted)).ok());
      RigBatch batch = rig.Make({{.carry = &shared, .first = first, .count = count}}, format);
      const std::string got = RunIn(rig, batch, peer, **memory, in_place ? 0 : kBytes / 2);
      EXPECT_EQ(got, TextOf(wanted.outputs.at(0)).substr(0, got.size())) << count << " tokens";
      if (!in_place) first += count / 2;
    }
  }
}

TEST_F(CudaIpcTest, TheReadyEventIsAskedWithoutWaiting) {
  StageRig rig = MakeRig();
  IpcPeer& peer = Peers::At(0);
  const auto memory = rig.device().Import(peer.Allocate(kBytes));
  ASSERT_TRUE(memory.ok()) << memory.status();
  peer.Hold();
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(*(*memory)->IsReady());
  // Nothing of ours waits for it.
  RigCarry carry = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &carry, .first = 0, .count = 3}).empty());
  peer.LetGo();
  while (!*(*memory)->IsReady()) std::this_thread::yield();
}

TEST_F(CudaIpcTest, OneAllocationIsOpenOnceAndAgainAfterItWasClosed) {
  StageRig rig = MakeRig();
  ClientMemoryHandles handles = Peers::At(0).Allocate(kBytes);
  for (int round = 0; round < 10; ++round) {
    handles.bytes = kBytes / 2;
    handles.offset = 0;
    const auto first = rig.device().Import(handles);
    handles.offset = kBytes / 2;
    const auto second = rig.device().Import(handles);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    EXPECT_EQ((*second)->data(), (*first)->data() + kBytes / 2);
  }
}

TEST_F(CudaIpcTest, WhatIsNotOursIsRefusedAndTheDeviceGoesOn) {
  StageRig rig = MakeRig();
  IpcPeer& peer = Peers::At(0);
  const ClientMemoryHandles good = peer.Allocate(kBytes);
  const auto refused = [&](const ClientMemoryHandles& handles, const char* text) {
    const auto memory = rig.device().Import(handles);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument) << text << ": " << memory.status();
    EXPECT_THAT(std::string(memory.status().message()), HasSubstr(text));
  };
  for (const char fill : {'\0', 'x', '\xff'}) {
    ClientMemoryHandles bad = good;
    bad.memory.assign(kIpcHandleBytes, fill);
    refused(bad, "memory_handle: cudaIpcOpenMemHandle");
    bad = good;
    bad.ready_event.assign(kIpcHandleBytes, fill);
    refused(bad, "ready_event: ");
    bad = good;
    bad.done_event.assign(kIpcHandleBytes, fill);
    refused(bad, "done_event: ");
  }
  ClientMemoryHandles bad = good;
  std::swap(bad.memory, bad.ready_event);
  refused(bad, "memory_handle: ");
  bad = good;
  bad.bytes = kBytes + 1;
  refused(bad, "must lie in the allocation, which has 8388608 bytes");
  bad = good;
  bad.offset = 16;
  refused(bad, "must lie in the allocation");
  bad = good;
  bad.gpu_uuid.back() = 'z';
  refused(bad, "gpu_uuid");
  EXPECT_TRUE(rig.device().Import(good).ok());
  RigCarry carry = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &carry, .first = 0, .count = 3}).empty());
}

TEST_F(CudaIpcTest, TheDeviceOutlivesAClientThatDies) {
  StageRig rig = MakeRig();
  IpcPeer& peer = Peers::At(1);
  const auto memory = rig.device().Import(peer.Allocate(kBytes));
  ASSERT_TRUE(memory.ok()) << memory.status();
  RigCarry carry = rig.NewCarry();
  RigBatch batch = rig.Make({{.carry = &carry, .first = 0, .count = 5}});
  TensorPart& part = batch.plan.parts.at(0);
  part.memory = TensorMemory::kDevice;
  part.input = (*memory)->data();
  part.output = (*memory)->data() + kBytes / 2;
  batch.plan.client_memory = {memory->get()};
  peer.Kill();
  (void)(*memory)->IsReady();  // an error or not
  EXPECT_TRUE(rig.device().Wait(rig.Start(batch)).ok());
  RigCarry other = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &other, .first = 0, .count = 3}).empty());
}

// A file of memory, as a client beside the server has it.
class SharedFile {
 public:
  SharedFile() { EXPECT_EQ(::posix_fallocate(fd_.get(), 0, kBytes), 0); }
  int fd() const { return fd_.get(); }
  void Put(uint64_t offset, const std::string& bytes) const {
    EXPECT_EQ(::pwrite(fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string Get(uint64_t offset, uint64_t bytes) const {
    std::string out(bytes, '\0');
    EXPECT_EQ(::pread(fd(), out.data(), bytes, static_cast<off_t>(offset)), static_cast<ssize_t>(bytes));
    return out;
  }

 private:
  const UniqueFd fd_{::memfd_create("tensors", MFD_CLOEXEC)};
};

TEST_F(CudaIpcTest, StepsInPagesOfAFileEqualStepsInTheHosts) {
  StageRig rig = MakeRig();
  const SharedFile file;
  const uint64_t at = 4096 + 16, output = kBytes / 2;
  const auto memory = rig.device().ImportFile(file.fd(), at, kBytes - at, nullptr);
  ASSERT_TRUE(memory.ok()) << memory.status();
  RigCarry calm = rig.NewCarry(), shared = rig.NewCarry();
  uint32_t first = 0;
  for (const uint32_t count : {1u, 2u, 7u, 64u, 65u, 128u}) {
    for (const DType output_dtype : {DType::kF32, DType::kBf16}) {
      for (const DType input_dtype : {DType::kF32, DType::kBf16}) {
        SCOPED_TRACE(::testing::Message() << count << " tokens");
        RigFormat format;
        format.input = input_dtype;
        format.output = output_dtype;
        format.kind = count % 3 == 0 ? OutputKind::kHighway : OutputKind::kDelta;
        RigBatch wanted = rig.Make({{.carry = &calm, .first = first, .count = count}}, format);
        ASSERT_TRUE(rig.device().Wait(rig.Start(wanted)).ok());
        RigBatch batch = rig.Make({{.carry = &shared, .first = first, .count = count}}, format);
        TensorPart& part = batch.plan.parts.at(0);
        const bool in_place = input_dtype == output_dtype && count % 2 == 0;
        file.Put(at, TextOf(batch.inputs.at(0)).substr(0, InputBytes(rig, part)));
        part.memory = TensorMemory::kPinned;
        part.input = (*memory)->data();
        part.output = in_place ? (*memory)->data() : (*memory)->data() + output;
        batch.plan.client_memory = {memory->get()};
        ASSERT_TRUE(rig.device().Wait(rig.Start(batch)).ok());
        const uint64_t bytes = part.num_tokens * rig.channels() * ByteSize(output_dtype);
        EXPECT_EQ(file.Get(in_place ? at : at + output, bytes), TextOf(wanted.outputs.at(0)).substr(0, bytes));
      }
    }
    first += count / 2;
  }
}

// One batch of three steps, the second of them in pages of a file.
TEST_F(CudaIpcTest, PagesOfAFileBesideTensorsInTheHosts) {
  StageRig rig = MakeRig();
  const SharedFile file;
  const auto memory = rig.device().ImportFile(file.fd(), 0, kBytes, nullptr);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (const std::array<uint32_t, 3> counts : {std::array<uint32_t, 3>{40, 60, 28}, {20, 17, 9}}) {
    for (const DType input : {DType::kF32, DType::kBf16}) {
      for (const bool zeros : {false, true}) {
        SCOPED_TRACE(::testing::Message() << counts[1] << " tokens, zeros " << zeros);
        RigFormat format;
        format.input = input;
        format.zeros = zeros;
        const auto make = [&] {
          std::vector<RigStep> steps;
          uint32_t first = 0;
          for (const uint32_t count : counts) {
            steps.push_back({.carry = nullptr, .first = first, .count = count});
            first += count;
          }
          return rig.Make(steps, format);
        };
        RigBatch wanted = make(), batch = make();
        ASSERT_TRUE(rig.device().Wait(rig.Start(wanted)).ok());
        TensorPart& part = batch.plan.parts.at(1);
        part.memory = TensorMemory::kPinned;
        if (!zeros) {
          file.Put(0, TextOf(batch.inputs.at(1)).substr(0, InputBytes(rig, part)));
          part.input = (*memory)->data();
        }
        part.output = (*memory)->data() + kBytes / 2;
        batch.plan.client_memory = {memory->get()};
        ASSERT_TRUE(rig.device().Wait(rig.Start(batch)).ok());
        for (const size_t step : {0, 2}) EXPECT_EQ(batch.outputs.at(step), wanted.outputs.at(step)) << step;
        const uint64_t bytes = part.num_tokens * rig.channels() * ByteSize(part.output_dtype);
        EXPECT_EQ(file.Get(kBytes / 2, bytes), TextOf(wanted.outputs.at(1)).substr(0, bytes));
      }
    }
  }
}

TEST_F(CudaIpcTest, AFileThatIsCutAndClosedIsNoErrorOfTheDevices) {
  StageRig rig = MakeRig();
  auto file = std::make_unique<SharedFile>();
  const auto memory = rig.device().ImportFile(file->fd(), 0, kBytes, nullptr);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (const uint32_t count : {5u, 100u}) {
    EXPECT_EQ(::ftruncate(file->fd(), 0), 0);
    RigCarry carry = rig.NewCarry();
    RigBatch batch = rig.Make({{.carry = &carry, .first = 0, .count = count}});
    TensorPart& part = batch.plan.parts.at(0);
    part.memory = TensorMemory::kPinned;
    part.input = (*memory)->data();
    part.output = (*memory)->data() + kBytes / 2;
    batch.plan.client_memory = {memory->get()};
    EXPECT_TRUE(rig.device().Wait(rig.Start(batch)).ok());
  }
  file = nullptr;
  RigCarry other = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &other, .first = 0, .count = 3}).empty());
}

TEST_F(CudaIpcTest, AFileThatIsCutWhileItIsImportedIsNoSignal) {
  StageRig rig = MakeRig();
  const SharedFile file;
  std::atomic<bool> over{false};
  std::thread cutter([&] {
    while (!over) {
      EXPECT_EQ(::ftruncate(file.fd(), 4096), 0);
      EXPECT_EQ(::ftruncate(file.fd(), kBytes), 0);
    }
  });
  for (int round = 0; round < 50; ++round) (void)rig.device().ImportFile(file.fd(), 0, kBytes, nullptr);  // or refused
  over = true;
  cutter.join();
  RigCarry carry = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &carry, .first = 0, .count = 3}).empty());
}

TEST_F(CudaIpcTest, WhatIsNotAllInAFileCannotBeHeld) {
  StageRig rig = MakeRig();
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  EXPECT_FALSE(rig.device().ImportFile(empty.get(), 0, kBytes, nullptr).ok());
  EXPECT_FALSE(rig.device().ImportFile(-1, 0, kBytes, nullptr).ok());
  RigCarry carry = rig.NewCarry();
  EXPECT_FALSE(rig.RunOne({.carry = &carry, .first = 0, .count = 3}).empty());
}

}  // namespace
}  // namespace pleiad
