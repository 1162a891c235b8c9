// Memory and events of "other processes" in the test's own, and a device that shares them: the CPU device, whose memory
// the host's is.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/device/import_table.h"

namespace pleiad::testing {

inline constexpr char kFakeGpu[] = "GPU-00000000-1111-2222-3333-444444444444";

// 64 bytes that begin with `name`.
inline std::string FakeHandle(const std::string& name) {
  return absl::StrCat(name, std::string(kIpcHandleBytes - name.size(), '.'));
}

// Thread-safe.
class FakeIpcWorld {
 public:
  struct Event {
    bool done = true;
    uint64_t asked = 0;
    uint64_t recorded = 0;
    int open = 0;
  };

  // Allocates zeros that a handle of this name opens.
  std::byte* Allocate(const std::string& name, size_t bytes) {
    MutexLock lock(&mutex_);
    Memory& memory = memories_[FakeHandle(name)];
    memory.bytes.resize(bytes + kAlignment);
    const auto at = reinterpret_cast<uintptr_t>(memory.bytes.data());
    memory.begin = memory.bytes.data() + (kAlignment - at % kAlignment);
    memory.size = bytes;
    return memory.begin;
  }
  void AddEvent(const std::string& name) { Set(name, true); }
  void Set(const std::string& name, bool done) {
    MutexLock lock(&mutex_);
    events_[FakeHandle(name)].done = done;
    changed_.NotifyAll();
  }
  void Break(const std::string& name) {
    MutexLock lock(&mutex_);
    broken_ = FakeHandle(name);
  }
  Event At(const std::string& name) const {
    MutexLock lock(&mutex_);
    return events_.at(FakeHandle(name));
  }
  void WaitForAsks(const std::string& name, uint64_t count) {
    MutexLock lock(&mutex_);
    while (events_.at(FakeHandle(name)).asked < count) changed_.Wait(&mutex_);
  }
  // How often an allocation is open now, and was opened.
  int OpenNow(const std::string& name) const {
    MutexLock lock(&mutex_);
    return memories_.at(FakeHandle(name)).open;
  }
  int Opened(const std::string& name) const {
    MutexLock lock(&mutex_);
    return memories_.at(FakeHandle(name)).opened;
  }

  void Record(void* event) {
    if (event == nullptr) return;
    MutexLock lock(&mutex_);
    ++static_cast<Event*>(event)->recorded;
  }
  // From now on nothing can be pinned, for this reason; OK: it can.
  void RefusePins(absl::Status why) {
    MutexLock lock(&mutex_);
    pins_refused_ = std::move(why);
  }
  uint64_t PinnedBytes() const {
    MutexLock lock(&mutex_);
    uint64_t bytes = 0;
    for (const auto& [data, size] : pinned_) bytes += size;
    return bytes;
  }
  // Called before something is unpinned.
  void BeforeUnpins(std::function<void()> act) {
    MutexLock lock(&mutex_);
    before_unpin_ = std::move(act);
  }
  // While held, Pin blocks.
  void HoldPins(bool hold) {
    MutexLock lock(&mutex_);
    pins_held_ = hold;
    changed_.NotifyAll();
  }
  void WaitForPins(uint64_t begun) {
    MutexLock lock(&mutex_);
    while (pins_begun_ < begun) changed_.Wait(&mutex_);
  }
  uint64_t PinsBegun() const {
    MutexLock lock(&mutex_);
    return pins_begun_;
  }
  // Called after each batch that is waited for.
  void AfterBatches(std::function<void()> act) {
    MutexLock lock(&mutex_);
    after_batch_ = std::move(act);
  }
  void BatchIsDone() {
    MutexLock lock(&mutex_);
    if (after_batch_) after_batch_();
  }
  // Parts of batches that a device found in pinned memory.
  std::atomic<uint64_t> parts_in_pinned_memory{0};
  std::unique_ptr<IpcDriver> Driver() { return std::make_unique<FakeDriver>(this); }

 private:
  static constexpr size_t kAlignment = 256;

  struct Memory {
    std::vector<std::byte> bytes;
    std::byte* begin = nullptr;
    size_t size = 0;
    int open = 0, opened = 0;
  };

  class FakeDriver final : public IpcDriver {
   public:
    explicit FakeDriver(FakeIpcWorld* world) : world_(world) {}
    const std::string& gpu_uuid() const override { return uuid_; }
    absl::StatusOr<Allocation> OpenMemory(const std::string& handle) override {
      MutexLock lock(&world_->mutex_);
      const auto found = world_->memories_.find(handle);
      if (found == world_->memories_.end()) return absl::InvalidArgumentError("no such memory");
      // As CUDA: once at a time.
      if (found->second.open > 0) return absl::InternalError("open already");
      ++found->second.open;
      ++found->second.opened;
      return Allocation{found->second.begin, found->second.size};
    }
    void CloseMemory(std::byte* data) override {
      MutexLock lock(&world_->mutex_);
      for (auto& [handle, memory] : world_->memories_) memory.open -= memory.begin == data;
    }
    absl::StatusOr<void*> OpenEvent(const std::string& handle, EventUse use) override {
      MutexLock lock(&world_->mutex_);
      const auto found = world_->events_.find(handle);
      if (found == world_->events_.end()) return absl::InvalidArgumentError("no such event");
      found->second.recorded += use == EventUse::kRecorded;
      ++found->second.open;
      return &found->second;
    }
    void CloseEvent(void* event) override {
      MutexLock lock(&world_->mutex_);
      --static_cast<Event*>(event)->open;
    }
    absl::StatusOr<bool> IsDone(void* event) override {
      MutexLock lock(&world_->mutex_);
      auto* asked = static_cast<Event*>(event);
      ++asked->asked;
      world_->changed_.NotifyAll();
      if (&world_->events_[world_->broken_] == asked) return absl::FailedPreconditionError("the event is gone");
      return asked->done;
    }
    absl::Status Pin(std::byte* data, uint64_t bytes) override {
      MutexLock lock(&world_->mutex_);
      ++world_->pins_begun_;
      world_->changed_.NotifyAll();
      while (world_->pins_held_) world_->changed_.Wait(&world_->mutex_);
      if (world_->pins_refused_.ok()) world_->pinned_[data] = bytes;
      return world_->pins_refused_;
    }
    bool Unpin(std::byte* data) override {
      MutexLock lock(&world_->mutex_);
      if (world_->before_unpin_) world_->before_unpin_();
      return world_->pinned_.erase(data) == 1;
    }

   private:
    FakeIpcWorld* const world_;
    const std::string uuid_ = kFakeGpu;
  };

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Memory> memories_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Event> events_ ABSL_GUARDED_BY(mutex_);
  std::string broken_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, uint64_t> pinned_ ABSL_GUARDED_BY(mutex_);
  absl::Status pins_refused_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> after_batch_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> before_unpin_ ABSL_GUARDED_BY(mutex_);
  bool pins_held_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t pins_begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Handles of `bytes` at `offset` of the allocation `name`, with events name.ready and name.done.
inline ClientMemoryHandles FakeHandles(const std::string& name, uint64_t offset, uint64_t bytes) {
  return {.memory = FakeHandle(name),
          .gpu_uuid = kFakeGpu,
          .ready_event = FakeHandle(name + ".ready"),
          .done_event = FakeHandle(name + ".done"),
          .offset = offset,
          .bytes = bytes};
}

// Around the CPU device; around one that holds pages of files by itself it leaves them to that.
class SharingDevice final : public Device {
 public:
  SharingDevice(std::unique_ptr<Device> inner, FakeIpcWorld* world)
      : inner_(std::move(inner)), world_(world), info_(inner_->info()), imports_(ImportTable::Create(world->Driver())) {
    info_.gpu_uuid = kFakeGpu;
  }

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override { return inner_->stats(); }
  StagingView staging() const override { return inner_->staging(); }
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override {
    return inner_->WriteArena(first, rows);
  }
  absl::StatusOr<std::shared_ptr<ClientMemory>> Import(const ClientMemoryHandles& handles) override {
    return imports_->Import(handles);
  }
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                           std::shared_ptr<void> until_released) override {
    absl::StatusOr<std::shared_ptr<ClientMemory>> pages = inner_->ImportFile(fd, offset, bytes, until_released);
    if (!absl::IsUnimplemented(pages.status())) {
      inner_holds_ = true;
      return pages;
    }
    return imports_->ImportFile(fd, offset, bytes, std::move(until_released));
  }
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override {
    BatchPlan here = plan;
    for (TensorPart& part : here.parts) {
      world_->parts_in_pinned_memory += part.memory == TensorMemory::kPinned;
      if (part.memory != TensorMemory::kPinned || !inner_holds_) part.memory = TensorMemory::kHost;
    }
    here.client_memory.clear();
    absl::StatusOr<Ticket> ticket = inner_->Run(here);
    for (const ClientMemory* memory : plan.client_memory) world_->Record(memory->done_event());
    return ticket;
  }
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override { return inner_->ReadCarry(read); }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override { return inner_->WriteCarry(write); }
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override { return inner_->SaveCarry(carry, rows); }
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override {
    return inner_->LoadCarry(carry, rows);
  }
  absl::Status Wait(Ticket ticket) override {
    const absl::Status status = inner_->Wait(ticket);
    world_->BatchIsDone();
    return status;
  }

 private:
  const std::unique_ptr<Device> inner_;
  FakeIpcWorld* const world_;
  DeviceInfo info_;
  const std::shared_ptr<ImportTable> imports_;
  std::atomic<bool> inner_holds_{false};
};

}  // namespace pleiad::testing
