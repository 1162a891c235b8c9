// A device that is lost when a test says so, as the contract of Device has it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "core/device/device.h"

namespace pleiad::testing {

enum class DeviceCall : uint8_t { kNone, kRun, kReadCarry, kWriteCarry, kSaveCarry, kLoadCarry, kWait };

// Which call is the first to fail; shared by a test and the device it cannot reach.
struct DeviceFault {
  std::atomic<DeviceCall> next{DeviceCall::kNone};
};

class FailingDevice : public Device {
 public:
  FailingDevice(std::unique_ptr<Device> inner, std::shared_ptr<DeviceFault> fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  const DeviceInfo& info() const override { return inner_->info(); }
  DeviceStats stats() const override { return inner_->stats(); }
  StagingView staging() const override { return inner_->staging(); }
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override {
    return inner_->WriteArena(first, rows);
  }
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override {
    if (Fails(DeviceCall::kRun)) return Lost();
    return inner_->Run(plan);
  }
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override {
    if (Fails(DeviceCall::kReadCarry)) return Lost();
    return inner_->ReadCarry(read);
  }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override {
    if (Fails(DeviceCall::kWriteCarry)) return Lost();
    return inner_->WriteCarry(write);
  }
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override {
    return Fails(DeviceCall::kSaveCarry) ? Lost() : inner_->SaveCarry(carry, rows);
  }
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override {
    return Fails(DeviceCall::kLoadCarry) ? Lost() : inner_->LoadCarry(carry, rows);
  }
  // What runs on the inner device has an end before this returns: its memory is in use until then.
  absl::Status Wait(Ticket ticket) override {
    const absl::Status status = inner_->Wait(ticket);
    return Fails(DeviceCall::kWait) ? Lost() : status;
  }

 private:
  static absl::Status Lost() { return absl::InternalError("planted loss of the device"); }

  bool Fails(DeviceCall call) {
    if (fault_->next.load() == call) lost_.store(true);
    return lost_.load();
  }

  const std::unique_ptr<Device> inner_;
  const std::shared_ptr<DeviceFault> fault_;
  std::atomic<bool> lost_{false};
};

}  // namespace pleiad::testing
