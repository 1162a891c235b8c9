// The CPU home: one worker thread is the stream, a pool shares its loops. See device.h for the contract.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/cpu/row_memory.h"
#include "core/device/cpu/stage.h"
#include "core/base/thread_pool.h"
#include "core/device/device.h"

namespace pleiad {

class CpuDevice : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceOptions& options,
                                                        std::vector<LayerWeights> weights);
  // Finishes what is enqueued.
  ~CpuDevice() override;

  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override ABSL_LOCKS_EXCLUDED(mutex_);
  StagingView staging() const override { return rows_.staging(); }
  absl::Status WriteArena(Slot first, absl::Span<const std::byte> rows) override;
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Ticket> ReadCarry(const CarryRead& read) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite& write) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SaveCarry(CarrySlot carry, absl::Span<float> rows) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LoadCarry(CarrySlot carry, absl::Span<const float> rows) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Wait(Ticket ticket) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Task = std::variant<std::unique_ptr<BatchPlan>, CarryRead, CarryWrite>;

  CpuDevice(const DeviceOptions& options, size_t layers, std::unique_ptr<ThreadPool> pool, RowMemory rows,
            std::unique_ptr<Stage> stage);

  absl::StatusOr<Ticket> Enqueue(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the worker has nothing left to do with carries.
  absl::Status AwaitAll() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Lose(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(const Task& task);
  void RunBatch(const BatchPlan& plan);

  const DeviceOptions options_;
  const size_t layers_;
  DeviceInfo info_;
  const std::unique_ptr<ThreadPool> pool_;

  // Written by the worker, in the order of the queue; before the first Run by WriteArena.
  RowMemory rows_;
  const std::unique_ptr<Stage> stage_;

  mutable Mutex mutex_;
  CondVar work_cv_;
  CondVar done_cv_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  // Plans that have run, kept for the room in their vectors.
  std::vector<std::unique_ptr<BatchPlan>> spare_plans_ ABSL_GUARDED_BY(mutex_);
  Ticket last_ ABSL_GUARDED_BY(mutex_);
  Ticket done_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  DeviceStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread worker_;
};

}  // namespace pleiad
