#include "core/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/device/cuda/gate_conv_args.h"
#include "core/device/plan_check.h"

namespace pleiad::cuda {

CudaDevice::~CudaDevice() {
  if (UseGpu().ok() && compute_.get() != nullptr) cudaDeviceSynchronize();
}

absl::Status CudaDevice::UseGpu() const {
  return ToStatus(cudaSetDevice(static_cast<int>(options_.cuda_ordinal)), "cudaSetDevice");
}

StagingView CudaDevice::staging() const { return {staging_.data(), options_.staging_rows, row_bytes_}; }

DeviceStats CudaDevice::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

absl::Status CudaDevice::WriteArena(Slot first, absl::Span<const std::byte> rows) {
  if (rows.size() % row_bytes_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows = ", rows.size(), " bytes: not a multiple of the row's ", row_bytes_));
  }
  const uint64_t count = rows.size() / row_bytes_;
  if (first.value() > options_.arena_slots || count > options_.arena_slots - first.value()) {
    return absl::OutOfRangeError(absl::StrCat("slots [", first.value(), ", ", first.value() + count,
                                              ") pass the arena's ", options_.arena_slots));
  }
  if (count == 0) return absl::OkStatus();
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaMemcpy(arena_.data() + uint64_t{first.value()} * row_bytes_, rows.data(),
                                             rows.size(), cudaMemcpyHostToDevice),
                                  "cudaMemcpy to the arena"));
  // From pageable memory that returns when the last part is on its way.
  return ToStatus(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

// ---- tickets -------------------------------------------------------------------------------------------------------

absl::Status CudaDevice::Lose(absl::Status why) {
  MutexLock lock(&mutex_);
  if (lost_.ok()) lost_ = absl::InternalError(why.message());
  retired_cv_.NotifyAll();
  return lost_;
}

absl::Status CudaDevice::lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

Ticket CudaDevice::Push(Work work) {
  MutexLock lock(&mutex_);
  work.ticket = last_ = Ticket(last_.value() + 1);
  if (work.slot != kNone) slots_[work.slot].last = last_;
  if (work.place != kNone) carry_io_.at(work.place).last = last_;
  queue_.push_back(work);
  return last_;
}

absl::Status CudaDevice::Wait(Ticket ticket) {
  while (true) {
    Work work;
    {
      MutexLock lock(&mutex_);
      while (lost_.ok() && done_ < ticket && retiring_) retired_cv_.Wait(&mutex_);
      if (!lost_.ok() || done_ >= ticket) return lost_;
      if (queue_.empty()) return absl::InternalError(absl::StrCat("ticket ", ticket.value(), " was never given"));
      work = queue_.front();
      queue_.pop_front();
      retiring_ = true;
    }
    absl::Status status = Retire(work);
    if (!status.ok()) status = Lose(std::move(status));
    MutexLock lock(&mutex_);
    retiring_ = false;
    if (status.ok()) done_ = work.ticket;
    retired_cv_.NotifyAll();
  }
}

bool CudaDevice::IsIdle() const {
  MutexLock lock(&mutex_);
  return queue_.empty() && !retiring_;
}

bool CudaDevice::IsDone(Ticket ticket) const {
  MutexLock lock(&mutex_);
  if (!lost_.ok() || done_ >= ticket) return true;
  if (queue_.empty() || queue_.back().ticket != ticket) return false;
  if (cudaEventQuery(queue_.back().done) != cudaErrorNotReady) return true;  // an error is Wait's to tell
  cudaGetLastError();  // this thread's next launch must not report it
  return false;
}

absl::Status CudaDevice::Retire(const Work& work) {
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(work.done), "cudaEventSynchronize"));
  if (work.rows != nullptr) {
    std::memcpy(work.rows, carry_io_.at(work.place).rows, carry_io_.place_bytes());
  }
  if (work.slot == kNone) return absl::OkStatus();
  BatchSlot& slot = slots_[work.slot];
  slot.tensors.Finish(copy_out_);
  PLEIAD_ASSIGN_OR_RETURN(const double seconds, BusySeconds(work));
  MutexLock lock(&mutex_);
  stats_.busy_seconds += seconds;
  return absl::OkStatus();
}

absl::StatusOr<double> CudaDevice::BusySeconds(const Work& work) const {
  float milliseconds = 0;
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaEventElapsedTime(&milliseconds, work.begun, work.computed), "cudaEventElapsedTime"));
  if (!options_.time_kernels && work.before != nullptr) {
    float since = 0;
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&since, work.before, work.computed), "cudaEventElapsedTime"));
    milliseconds = std::min(milliseconds, since);
  }
  return double{milliseconds} / 1000;
}

// ---- batches -------------------------------------------------------------------------------------------------------

absl::Status CudaDevice::CheckBatch(const BatchPlan& plan) const {
  PLEIAD_RETURN_IF_ERROR(CheckPlan(options_, layers_.size(), TensorMemory::kDevice, plan));
  if (plan.fills.size() > options_.staging_rows) {
    return absl::InternalError(
        absl::StrCat("plan: fills.size = ", plan.fills.size(), ": must be <= staging_rows = ", options_.staging_rows));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ClientMemory>> CudaDevice::Import(const ClientMemoryHandles& handles) {
  if (imports_ == nullptr) return Device::Import(handles);
  return imports_->Import(handles);
}

absl::StatusOr<std::shared_ptr<ClientMemory>> CudaDevice::ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                                     std::shared_ptr<void> until_released) {
  if (imports_ == nullptr) return Device::ImportFile(fd, offset, bytes, std::move(until_released));
  return imports_->ImportFile(fd, offset, bytes, std::move(until_released));
}

void CudaDevice::RecordDone(const BatchPlan& plan) const {
  for (const ClientMemory* memory : plan.client_memory) {
    const auto event = static_cast<cudaEvent_t>(memory->done_event());
    if (event == nullptr) continue;
    // It was tried when it was opened; should it have gone bad, the client has the answer, and the device is not lost.
    if (cudaEventRecord(event, compute_.get()) != cudaSuccess) cudaGetLastError();
  }
}

absl::StatusOr<Ticket> CudaDevice::Run(const BatchPlan& plan) {
  PLEIAD_RETURN_IF_ERROR(lost());
  absl::Status status = CheckBatch(plan);
  status.Update(UseGpu());
  if (!status.ok()) return Lose(std::move(status));
  Work work;
  work.slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % kSlots;
  BatchSlot& slot = slots_[work.slot];
  PLEIAD_RETURN_IF_ERROR(Wait(slot.last));
  status = Enqueue(plan, slot, &work);
  if (!status.ok()) return Lose(std::move(status));
  return Push(work);
}

absl::Status CudaDevice::Enqueue(const BatchPlan& plan, BatchSlot& slot, Work* work) {
  const uint32_t tokens = plan.num_tokens;
  absl::Span<const PartAddress> parts;
  uint16_t* embeddings = nullptr;
  if (plan.embeddings != nullptr) {
    embeddings = slot.tensors.BeginEmbeddings(plan);
  } else {
    parts = slot.tensors.Begin(plan, copy_in_);
  }
  // Short plans keep one layout, which graphs know.
  const PlanRows rows = plan.hashed.empty() ? PlanRows::kPlaces : PlanRows::kTokens;
  const PlanImageLayout layout(shape_, std::max(tokens, kGraphTokens), rows);
  if (++stamp_ == 0) {
    // Scalars of 2^32 batches ago must not pass for this one's.
    PLEIAD_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(gates_.data(), 0, gates_.size(), compute_.get()), "cudaMemsetAsync"));
    stamp_ = 1;
  }
  const PlanImageCounts counts = WritePlanImage(shape_, layout, plan, parts, stamp_, slot.image.data());
  PLEIAD_RETURN_IF_ERROR(EnqueueUploads(plan, layout, counts, slot));

  const std::byte* image = slot.device_image.data();
  if (options_.time_kernels && plan.hashed.empty()) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(slot.begun.get(), compute_.get()), "cudaEventRecord"));
  }
  CopyRowsArgs fills;
  fills.pairs = reinterpret_cast<const RowPair*>(image + layout.pairs);
  fills.count = counts.fills;
  fills.row_bytes = row_bytes_;
  fills.from = device_staging_.data();
  fills.to = arena_.data();
  PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchFillRows(fills, compute_.get()), "launch of fills"));
  if (tokens == 0 || ProjectsFew(tokens)) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchUndoMoves(reinterpret_cast<const UndoMove*>(image + layout.moves),
                                                    counts.moves, carries_, compute_.get()),
                                    "launch of undo moves"));
  }
  BatchPath path = BatchPath::kLaunches;
  if (embeddings != nullptr) {
    GatherArgs gather = GatherFrom(slot, layout, plan.layer, tokens, rows);
    gather.out = embeddings;
    PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchGather(gather, 0, compute_.get()), "launch of the gather"));
  } else if (tokens > 0) {
    const cudaGraphExec_t graph = rows == PlanRows::kPlaces ? FindGraph(slot, plan.layer, tokens) : nullptr;
    if (graph != nullptr) {
      path = BatchPath::kGraph;
      PLEIAD_RETURN_IF_ERROR(ToStatus(cudaGraphLaunch(graph, compute_.get()), "cudaGraphLaunch"));
    } else {
      PLEIAD_RETURN_IF_ERROR(EnqueueStage(slot, plan.layer, layout, {tokens, counts.items, counts.moves, rows}));
    }
  }
  RecordDone(plan);
  slot.turn ^= 1;
  work->begun = options_.time_kernels || !plan.hashed.empty() ? slot.begun.get() : slot.uploaded.get();
  work->before = last_computed_;
  work->done = work->computed = last_computed_ = slot.computed[slot.turn].get();
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(work->computed, compute_.get()), "cudaEventRecord"));
  if (slot.tensors.has_outputs()) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(download_.get(), work->computed, 0), "cudaStreamWaitEvent"));
    PLEIAD_RETURN_IF_ERROR(slot.tensors.EnqueueOutputs(download_.get()));
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(slot.done.get(), download_.get()), "cudaEventRecord"));
    work->done = slot.done.get();
  }
  MutexLock lock(&mutex_);
  if (tokens > 0) ++stats_.batches;
  if (path == BatchPath::kGraph) ++stats_.graph_batches;
  return absl::OkStatus();
}

absl::Status CudaDevice::EnqueueUploads(const BatchPlan& plan, const PlanImageLayout& layout,
                                        const PlanImageCounts& counts, BatchSlot& slot) {
  // Beside a batch that runs, uploads have a stream of their own; where none does that only costs calls.
  const bool alone = counts.uploads == 0 && !slot.tensors.has_inputs() && IsIdle();
  const cudaStream_t stream = alone ? compute_.get() : upload_.get();
  if (counts.uploads > counts.fills && last_computed_ != nullptr) {
    // A bypassed row may be one that the batch before still gathers.
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(upload_.get(), last_computed_, 0), "cudaStreamWaitEvent"));
  }
  if (!plan.hashed.empty()) {
    PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(slot.begun.get(), stream), "cudaEventRecord"));
    PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchHashRows(HashArgsOf(hashes_.of(plan.layer), layout, counts, plan.num_tokens,
                                                              slot.image, slot.device_image, slot.hashed_rows),
                                                   stream),
                                    "launch of the row hash"));
  } else {
    PLEIAD_RETURN_IF_ERROR(ToStatus(
        cudaMemcpyAsync(slot.device_image.data(), slot.image.data(), counts.bytes, cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync of the plan"));
  }
  CopyRowsArgs rows;
  rows.pairs = reinterpret_cast<const RowPair*>(slot.device_image.data() + layout.pairs);
  rows.count = counts.uploads;
  rows.row_bytes = row_bytes_;
  rows.from = staging_.data();
  rows.to = device_staging_.data();
  PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchUploadRows(rows, stream), "launch of the upload"));
  PLEIAD_RETURN_IF_ERROR(slot.tensors.EnqueueInputs(stream));
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaEventRecord(slot.uploaded.get(), stream), "cudaEventRecord"));
  if (alone) return absl::OkStatus();
  return ToStatus(cudaStreamWaitEvent(compute_.get(), slot.uploaded.get(), 0), "cudaStreamWaitEvent");
}

GatherArgs CudaDevice::GatherFrom(const BatchSlot& slot, const PlanImageLayout& layout, LayerOrdinal layer,
                                  uint32_t tokens, PlanRows rows) const {
  const std::byte* image = slot.device_image.data();
  GatherArgs args;
  args.header = reinterpret_cast<const PlanHeader*>(image);
  args.rows = rows == PlanRows::kTokens ? slot.hashed_rows.As<const uint32_t>()
                                        : reinterpret_cast<const uint32_t*>(image + layout.gather);
  args.max_rows = tokens * options_.geometry.heads();
  args.arena = arena_.data();
  args.staging = device_staging_.data();
  args.f8_decode = layers_[layer.value()].pointers().f8_decode;
  args.head_dim = options_.geometry.head_dim();
  return args;
}

bool CudaDevice::ProjectsFew(uint32_t tokens) const {
  return !options_.batch_invariant && CanProjectFew(tokens, options_.geometry.embed_dim, options_.geometry.head_dim());
}

bool CudaDevice::ProjectsRows(uint32_t tokens) const {
  return !options_.batch_invariant && options_.row_dtype == DType::kBf16 && tokens <= project_rows_tokens_;
}

absl::Status CudaDevice::EnqueueProjection(const BatchSlot& slot, LayerOrdinal layer, const PlanImageLayout& layout,
                                           const StageSizes& sizes) {
  const LayerPointers pointers = layers_[layer.value()].pointers();
  GatherArgs gather = GatherFrom(slot, layout, layer, sizes.tokens, sizes.rows);
  if (ProjectsFew(sizes.tokens)) {
    ProjectFewArgs args;
    args.gather = gather;
    args.weights = pointers.key_value;
    args.outputs = options_.geometry.channels() + options_.geometry.hidden_size;
    args.embed = options_.geometry.embed_dim;
    args.out = key_value_.As<uint16_t>();
    return ToStatus(LaunchProjectFew(args, sizes.tokens, multiprocessors_, compute_.get()), "launch of the projection");
  }
  gather.moves = reinterpret_cast<const UndoMove*>(slot.device_image.data() + layout.moves);
  gather.carries = carries_;
  if (ProjectsRows(sizes.tokens)) {
    ProjectRowsArgs args;
    args.gather = gather;
    args.weights = pointers.key_value;
    args.outputs = options_.geometry.channels() + options_.geometry.hidden_size;
    args.embed = options_.geometry.embed_dim;
    args.tokens = sizes.tokens;
    args.out = key_value_.As<uint16_t>();
    return ToStatus(LaunchProjectRows(args, multiprocessors_, compute_.get()), "launch of the projection");
  }
  gather.out = embeddings_.As<uint16_t>();
  PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchGather(gather, sizes.moves, compute_.get()), "launch of the gather"));
  return gemm_->Enqueue(pointers.key_value, embeddings_.As<uint16_t>(), sizes.tokens, key_value_.As<uint16_t>(),
                        compute_.get());
}

absl::Status CudaDevice::EnqueueStage(const BatchSlot& slot, LayerOrdinal layer, const PlanImageLayout& layout,
                                      const StageSizes& sizes) {
  const Geometry& geometry = options_.geometry;
  PLEIAD_RETURN_IF_ERROR(EnqueueProjection(slot, layer, layout, sizes));
  GateConvArgs args = GateConvArgsOf(geometry, gate_conv_);
  args.header = reinterpret_cast<const PlanHeader*>(slot.device_image.data());
  args.items = reinterpret_cast<const ChainItem*>(slot.device_image.data() + layout.items);
  args.key_value = key_value_.As<uint16_t>();
  args.layer = layers_[layer.value()].pointers();
  args.carries = carries_;
  args.gates = gates_.As<ChainGate>();
  args.once = HasItemsOfOne(shape_, sizes.tokens) ? 1 : 0;
  return ToStatus(LaunchGateConv(args, sizes.items, compute_.get()), "launch of gate and conv");
}

}  // namespace pleiad::cuda
