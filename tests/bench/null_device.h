// A device whose batches are done at once and cost nothing, so that what is left of a step is the way to it and back.
#pragma once

#include <memory>
#include <utility>

#include "core/device/device.h"

namespace pleiad::bench {

// Carries, staging and gathers of embeddings are the inner device's. A batch copies the marks (client/cli/marks.h) of
// each input to its output where both have one dtype, else writes zeros there; all else of an output keeps what its
// memory held.
class NullDevice final : public Device {
 public:
  NullDevice(std::unique_ptr<Device> inner, const Geometry& geometry);

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override { return inner_->stats(); }
  StagingView staging() const override { return inner_->staging(); }
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override {
    return inner_->WriteArena(first, rows);
  }
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override;
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override { return Finish(inner_->ReadCarry(read)); }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override { return Finish(inner_->WriteCarry(write)); }
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override { return inner_->SaveCarry(carry, rows); }
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override {
    return inner_->LoadCarry(carry, rows);
  }
  // All that was enqueued is done.
  absl::Status Wait(Ticket) override { return absl::OkStatus(); }
  bool IsDone(Ticket) const override { return true; }

 private:
  // Waits for the inner device's work.
  absl::StatusOr<Ticket> Finish(absl::StatusOr<Ticket> inner);

  const std::unique_ptr<Device> inner_;
  const uint32_t channels_;
  DeviceInfo info_;
  uint64_t last_ticket_ = 0;  // of the thread that enqueues now
};

}  // namespace pleiad::bench
