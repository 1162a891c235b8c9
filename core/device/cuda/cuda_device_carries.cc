// The CUDA device's carries: read, written, saved and loaded between batches.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/plan_check.h"

namespace pleiad::cuda {

absl::StatusOr<Ticket> CudaDevice::ReadCarry(const CarryRead& read) {
  PLEIAD_RETURN_IF_ERROR(lost());
  Work work;
  work.place = carry_io_.Next();
  work.rows = read.rows;
  PLEIAD_RETURN_IF_ERROR(Wait(carry_io_.at(work.place).last));
  absl::Status status = CheckCarry(options_, read.carry, read.ring);
  status.Update(UseGpu());
  if (status.ok()) status = EnqueueReadCarry(read, &work);
  if (!status.ok()) return Lose(std::move(status));
  return Push(work);
}

absl::StatusOr<Ticket> CudaDevice::WriteCarry(const CarryWrite& write) {
  PLEIAD_RETURN_IF_ERROR(lost());
  Work work;
  work.place = carry_io_.Next();
  PLEIAD_RETURN_IF_ERROR(Wait(carry_io_.at(work.place).last));
  absl::Status status = CheckCarry(options_, write.carry, RingView{});
  status.Update(UseGpu());
  if (status.ok()) status = EnqueueWriteCarry(write, &work);
  if (!status.ok()) return Lose(std::move(status));
  return Push(work);
}

absl::Status CudaDevice::EnqueueReadCarry(const CarryRead& read, Work* work) {
  CarryIo::Place& place = carry_io_.at(work->place);
  const uint32_t valid = std::min(read.ring.valid, carries_.state_len);
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(LaunchReadCarry(carries_, read.carry.value(), read.ring.cursor, valid, place.rows, compute_.get()),
               "launch of a carry's read"));
  work->done = place.done.get();
  return ToStatus(cudaEventRecord(work->done, compute_.get()), "cudaEventRecord");
}

absl::Status CudaDevice::EnqueueWriteCarry(const CarryWrite& write, Work* work) {
  CarryIo::Place& place = carry_io_.at(work->place);
  if (place.rows != nullptr) std::memcpy(place.rows, write.rows, carry_io_.place_bytes());
  PLEIAD_RETURN_IF_ERROR(ToStatus(LaunchWriteCarry(carries_, write.carry.value(), place.rows, compute_.get()),
                                  "launch of a carry's write"));
  work->done = place.done.get();
  return ToStatus(cudaEventRecord(work->done, compute_.get()), "cudaEventRecord");
}

// What was enqueued is done, so the copies on the stream of the batches come between them.
absl::Status CudaDevice::CopyWholeCarry(CarrySlot carry, size_t values, float* out, const float* in) {
  PLEIAD_RETURN_IF_ERROR(CheckWholeCarry(options_, carry, values));
  PLEIAD_RETURN_IF_ERROR(lost());
  if (values == 0) return absl::OkStatus();
  float* const rows = carries_.rows + carry.value() * values;
  absl::Status status = UseGpu();
  if (status.ok()) {
    status = ToStatus(cudaMemcpyAsync(out != nullptr ? out : rows, out != nullptr ? rows : in, values * sizeof(float),
                                      cudaMemcpyDefault, compute_.get()),
                      "cudaMemcpyAsync of a carry");
  }
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(compute_.get()), "cudaStreamSynchronize");
  return status.ok() ? status : Lose(std::move(status));
}

absl::Status CudaDevice::SaveCarry(CarrySlot carry, absl::Span<float> rows) {
  return CopyWholeCarry(carry, rows.size(), rows.data(), nullptr);
}

absl::Status CudaDevice::LoadCarry(CarrySlot carry, absl::Span<const float> rows) {
  return CopyWholeCarry(carry, rows.size(), nullptr, rows.data());
}

}  // namespace pleiad::cuda
