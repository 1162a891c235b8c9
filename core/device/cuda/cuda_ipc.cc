#include "core/device/cuda/cuda_ipc.h"

#include <cuda.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/device/cuda/cuda_status.h"

namespace pleiad::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == kIpcHandleBytes && sizeof(cudaIpcEventHandle_t) == kIpcHandleBytes);

// A client's handle may be anything: what CUDA says of it is its fault, and is no error of this thread's next launch.
absl::Status Theirs(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const absl::Status status = ToStatus(error, call);
  if (absl::IsResourceExhausted(status)) return status;
  return absl::InvalidArgumentError(status.message());
}

}  // namespace

absl::StatusOr<std::string> GpuUuid(int ordinal) {
  cudaDeviceProp properties;
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  const std::string digits =
      absl::BytesToHexString(absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
  return absl::StrCat("GPU-", digits.substr(0, 8), "-", digits.substr(8, 4), "-", digits.substr(12, 4), "-",
                      digits.substr(16, 4), "-", digits.substr(20));
}

absl::StatusOr<std::unique_ptr<CudaIpc>> CudaIpc::Create(int ordinal) {
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal), "cudaSetDevice"));
  PLEIAD_ASSIGN_OR_RETURN(std::string uuid, GpuUuid(ordinal));
  void* address_range = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  PLEIAD_RETURN_IF_ERROR(ToStatus(
      cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &address_range, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion"));
  if (found != cudaDriverEntryPointSuccess || address_range == nullptr) {
    return absl::UnimplementedError("this driver has no cuMemGetAddressRange");
  }
  int host_page_tables = 0;
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&host_page_tables, cudaDevAttrPageableMemoryAccessUsesHostPageTables, ordinal),
               "cudaDeviceGetAttribute"));
  PLEIAD_ASSIGN_OR_RETURN(Stream stream, MakeStream(StreamPriority::kNormal));
  return std::unique_ptr<CudaIpc>(
      new CudaIpc(ordinal, std::move(uuid), address_range, host_page_tables != 0, std::move(stream)));
}

CudaIpc::CudaIpc(int ordinal, std::string gpu_uuid, void* address_range, bool host_page_tables, Stream stream)
    : ordinal_(ordinal),
      gpu_uuid_(std::move(gpu_uuid)),
      address_range_(address_range),
      host_page_tables_(host_page_tables),
      stream_(std::move(stream)) {}

absl::Status CudaIpc::UseGpu() const { return ToStatus(cudaSetDevice(ordinal_), "cudaSetDevice"); }

absl::StatusOr<IpcDriver::Allocation> CudaIpc::OpenMemory(const std::string& handle) {
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  cudaIpcMemHandle_t opaque;
  std::memcpy(&opaque, handle.data(), sizeof(opaque));
  void* data = nullptr;
  PLEIAD_RETURN_IF_ERROR(
      Theirs(cudaIpcOpenMemHandle(&data, opaque, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle"));
  absl::StatusOr<Allocation> allocation = Examine(static_cast<std::byte*>(data));
  if (!allocation.ok()) CloseMemory(static_cast<std::byte*>(data));
  return allocation;
}

absl::StatusOr<IpcDriver::Allocation> CudaIpc::Examine(std::byte* data) const {
  cudaPointerAttributes attributes;
  PLEIAD_RETURN_IF_ERROR(Theirs(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes"));
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != ordinal_) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be memory of the GPU that gpu_uuid names, and is of GPU ", attributes.device));
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const auto at = reinterpret_cast<CUdeviceptr>(data);
  const CUresult result = reinterpret_cast<decltype(&cuMemGetAddressRange)>(address_range_)(&base, &bytes, at);
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat("cuMemGetAddressRange: error ", static_cast<int>(result)));
  }
  if (at < base || at - base > bytes) return absl::InternalError("cuMemGetAddressRange: another allocation");
  return Allocation{data, bytes - (at - base)};
}

void CudaIpc::CloseMemory(std::byte* data) {
  if (UseGpu().ok() && cudaIpcCloseMemHandle(data) != cudaSuccess) cudaGetLastError();
}

absl::StatusOr<void*> CudaIpc::OpenEvent(const std::string& handle, EventUse use) {
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  cudaIpcEventHandle_t opaque;
  std::memcpy(&opaque, handle.data(), sizeof(opaque));
  cudaEvent_t event = nullptr;
  PLEIAD_RETURN_IF_ERROR(Theirs(cudaIpcOpenEventHandle(&event, opaque), "cudaIpcOpenEventHandle"));
  // One of another GPU opens and fails at its use, which would be a batch's.
  const absl::Status tried = use == EventUse::kAsked ? IsDone(event).status()
                                                     : Theirs(cudaEventRecord(event, stream_.get()), "cudaEventRecord");
  if (tried.ok()) return event;
  CloseEvent(event);
  return absl::InvalidArgumentError(tried.message());
}

void CudaIpc::CloseEvent(void* event) {
  if (UseGpu().ok() && cudaEventDestroy(static_cast<cudaEvent_t>(event)) != cudaSuccess) cudaGetLastError();
}

absl::StatusOr<bool> CudaIpc::IsDone(void* event) {
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaSuccess) return true;
  cudaGetLastError();
  if (error == cudaErrorNotReady) return false;
  return absl::FailedPreconditionError(ToStatus(error, "cudaEventQuery of an event of the client's").message());
}

absl::Status CudaIpc::Pin(std::byte* data, uint64_t bytes) {
  PLEIAD_RETURN_IF_ERROR(UseGpu());
  // Past the end of a file that was cut short such a GPU would meet a fault.
  if (host_page_tables_) return absl::FailedPreconditionError("the GPU reads memory of the host by the host's tables");
  const absl::Status pinned = Theirs(cudaHostRegister(data, bytes, cudaHostRegisterMapped), "cudaHostRegister");
  if (absl::IsResourceExhausted(pinned)) return pinned;
  if (!pinned.ok()) return absl::FailedPreconditionError(pinned.message());
  void* seen = nullptr;
  absl::Status status = Theirs(cudaHostGetDevicePointer(&seen, data, 0), "cudaHostGetDevicePointer");
  if (status.ok() && seen == data) return status;
  Unpin(data);
  return absl::FailedPreconditionError(status.ok() ? "the GPU reaches memory of the host at other addresses"
                                                   : status.message());
}

bool CudaIpc::Unpin(std::byte* data) {
  if (!UseGpu().ok()) return false;
  if (cudaHostUnregister(data) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

}  // namespace pleiad::cuda
