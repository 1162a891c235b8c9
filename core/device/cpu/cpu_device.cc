#include "core/device/cpu/cpu_device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/isa.h"
#include "core/device/plan_check.h"

namespace pleiad {

absl::StatusOr<std::unique_ptr<Device>> CpuDevice::Create(const DeviceOptions& options,
                                                          std::vector<LayerWeights> weights) {
  const Isa best = DetectIsa();
  const Isa isa = std::min(best, ParseIsa(options.cpu_isa).value_or(best));
  const size_t threads = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  auto pool = std::make_unique<ThreadPool>(threads);
  PLEIAD_ASSIGN_OR_RETURN(RowMemory rows, RowMemory::Create(options));
  std::vector<LayerConstants> layers;
  for (LayerWeights& layer : weights) {
    PLEIAD_ASSIGN_OR_RETURN(LayerConstants constants, MakeLayerConstants(options.geometry, std::move(layer)));
    layers.push_back(std::move(constants));
  }
  PLEIAD_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(options, isa, std::move(layers), *pool));
  return std::unique_ptr<Device>(
      new CpuDevice(options, weights.size(), std::move(pool), std::move(rows), std::move(stage)));
}

CpuDevice::CpuDevice(const DeviceOptions& options, size_t layers, std::unique_ptr<ThreadPool> pool, RowMemory rows,
                     std::unique_ptr<Stage> stage)
    : options_(options), layers_(layers), pool_(std::move(pool)), rows_(std::move(rows)), stage_(std::move(stage)) {
  info_.name = "cpu";
  info_.detail = absl::StrCat(ProcessorName(), ", ", pool_->threads(), " threads, projection: ", stage_->detail());
  info_.memory.arena = rows_.arena_bytes();
  info_.memory.staging = rows_.staging_bytes();
  info_.memory.carries = stage_->carry_bytes();
  info_.memory.weights = stage_->weight_bytes();
  info_.memory.scratch = stage_->scratch_bytes();
  worker_ = std::thread([this] { Work(); });
}

CpuDevice::~CpuDevice() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_cv_.NotifyOne();
  }
  worker_.join();
}

absl::Status CpuDevice::WriteArena(Slot first, absl::Span<const std::byte> rows) {
  return rows_.WriteArena(first, rows);
}

DeviceStats CpuDevice::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

absl::Status CpuDevice::Lose(absl::Status why) {
  MutexLock lock(&mutex_);
  if (lost_.ok()) lost_ = std::move(why);
  done_cv_.NotifyAll();
  return lost_;
}

absl::StatusOr<Ticket> CpuDevice::Run(const BatchPlan& plan) {
  absl::Status status = CheckPlan(options_, layers_, TensorMemory::kHost, plan);
  if (!status.ok()) return Lose(std::move(status));
  std::unique_ptr<BatchPlan> copy;
  {
    MutexLock lock(&mutex_);
    if (!spare_plans_.empty()) {
      copy = std::move(spare_plans_.back());
      spare_plans_.pop_back();
    }
  }
  if (copy == nullptr) copy = std::make_unique<BatchPlan>();
  *copy = plan;
  return Enqueue(std::move(copy));
}

absl::StatusOr<Ticket> CpuDevice::ReadCarry(const CarryRead& read) {
  absl::Status status = CheckCarry(options_, read.carry, read.ring);
  if (!status.ok()) return Lose(std::move(status));
  return Enqueue(read);
}

absl::StatusOr<Ticket> CpuDevice::WriteCarry(const CarryWrite& write) {
  absl::Status status = CheckCarry(options_, write.carry, RingView{});
  if (!status.ok()) return Lose(std::move(status));
  return Enqueue(write);
}

absl::Status CpuDevice::SaveCarry(CarrySlot carry, absl::Span<float> rows) {
  PLEIAD_RETURN_IF_ERROR(CheckWholeCarry(options_, carry, rows.size()));
  PLEIAD_RETURN_IF_ERROR(AwaitAll());
  stage_->Save(carry, rows);
  return absl::OkStatus();
}

absl::Status CpuDevice::LoadCarry(CarrySlot carry, absl::Span<const float> rows) {
  PLEIAD_RETURN_IF_ERROR(CheckWholeCarry(options_, carry, rows.size()));
  PLEIAD_RETURN_IF_ERROR(AwaitAll());
  stage_->Load(carry, rows);
  return absl::OkStatus();
}

absl::Status CpuDevice::AwaitAll() {
  MutexLock lock(&mutex_);
  while (lost_.ok() && done_ < last_) done_cv_.Wait(&mutex_);
  return lost_;
}

absl::StatusOr<Ticket> CpuDevice::Enqueue(Task task) {
  MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  queue_.push_back(std::move(task));
  last_ = Ticket(last_.value() + 1);
  work_cv_.NotifyOne();
  return last_;
}

absl::Status CpuDevice::Wait(Ticket ticket) {
  MutexLock lock(&mutex_);
  while (lost_.ok() && done_ < ticket) done_cv_.Wait(&mutex_);
  return lost_;
}

void CpuDevice::Work() {
  for (;;) {
    Task task;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stop_) work_cv_.Wait(&mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    const auto begun = std::chrono::steady_clock::now();
    Do(task);
    const std::chrono::duration<double> busy = std::chrono::steady_clock::now() - begun;
    MutexLock lock(&mutex_);
    stats_.busy_seconds += busy.count();
    if (auto* plan = std::get_if<std::unique_ptr<BatchPlan>>(&task)) {
      if ((*plan)->num_tokens > 0) ++stats_.batches;
      spare_plans_.push_back(std::move(*plan));
    }
    done_ = Ticket(done_.value() + 1);
    done_cv_.NotifyAll();
  }
}

void CpuDevice::Do(const Task& task) {
  if (const auto* plan = std::get_if<std::unique_ptr<BatchPlan>>(&task)) {
    RunBatch(**plan);
  } else if (const auto* read = std::get_if<CarryRead>(&task)) {
    stage_->Read(*read);
  } else {
    stage_->Write(std::get<CarryWrite>(task));
  }
}

void CpuDevice::RunBatch(const BatchPlan& plan) {
  rows_.Fill(plan.fills, *pool_);
  if (plan.embeddings != nullptr) {
    rows_.Gather(plan.layer, plan.gather, *pool_, plan.embeddings);
    return;
  }
  rows_.Gather(plan.layer, plan.gather, *pool_, stage_->embeddings());
  stage_->Run(plan);
}

}  // namespace pleiad
