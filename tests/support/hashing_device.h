// A device that finds the rows of tokens itself, as the contract of Device has it: with the engine's own hasher, ahead
// of a device that gathers what it is told.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/device.h"

namespace pleiad::testing {

class HashingDevice : public Device {
 public:
  HashingDevice(std::unique_ptr<Device> inner, std::vector<RowHash> hashes, std::shared_ptr<std::atomic<uint64_t>> seen)
      : inner_(std::move(inner)), hashes_(std::move(hashes)), info_(inner_->info()), hashed_(std::move(seen)) {
    info_.hashes_rows = true;
  }

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override { return inner_->stats(); }
  StagingView staging() const override { return inner_->staging(); }
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override {
    return inner_->WriteArena(first, rows);
  }
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override {
    if (plan.hashed.empty()) return inner_->Run(plan);
    if (hashed_ != nullptr) ++*hashed_;
    auto named = std::make_unique<BatchPlan>(plan);
    named->hashed.clear();
    const RowHash& hash = hashes_[plan.layer.value()];
    for (const HashedTokens& segment : plan.hashed) {
      std::vector<RowId> ids(segment.tokens.size() * hash.hasher.heads());
      hash.hasher.Hash(segment.history, segment.tokens, absl::MakeSpan(ids));
      for (const RowId id : ids) {
        named->gather.push_back(GatherIndex::OfSlot(Slot(static_cast<uint32_t>(hash.first_slot.value() + id.value()))));
      }
    }
    absl::StatusOr<Ticket> ticket = inner_->Run(*named);
    MutexLock lock(&mutex_);
    if (ticket.ok()) running_[*ticket] = std::move(named);
    return ticket;
  }
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override { return inner_->ReadCarry(read); }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override { return inner_->WriteCarry(write); }
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override { return inner_->SaveCarry(carry, rows); }
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override {
    return inner_->LoadCarry(carry, rows);
  }
  absl::Status Wait(Ticket ticket) override {
    absl::Status status = inner_->Wait(ticket);
    MutexLock lock(&mutex_);
    running_.erase(running_.begin(), running_.upper_bound(ticket));
    return status;
  }

 private:
  const std::unique_ptr<Device> inner_;
  const std::vector<RowHash> hashes_;
  DeviceInfo info_;
  const std::shared_ptr<std::atomic<uint64_t>> hashed_;  // batches
  Mutex mutex_;
  std::map<Ticket, std::unique_ptr<BatchPlan>> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::testing
