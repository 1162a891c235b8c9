// The CUDA device's start: memory, layers, projection, graphs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/carry_pool.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_ipc.h"
#include "core/device/plan_check.h"

namespace pleiad {
namespace cuda {
namespace {

// Threads that copy tensors between host memory and pinned memory; more do not copy faster.
constexpr uint32_t kCopyThreads = 4;

size_t CopyThreads(const DeviceOptions& options) {
  return options.threads == 0 ? kCopyThreads : std::min(options.threads, kCopyThreads);
}

// Graphs are made for 1, 2, 4, ... tokens; the place of the first that takes `tokens`.
uint32_t GraphBucket(uint32_t tokens) {
  uint32_t bucket = 0;
  while ((1u << bucket) < tokens) ++bucket;
  return bucket;
}

}  // namespace

CudaDevice::CudaDevice(const DeviceOptions& options)
    : options_(options), copy_in_(CopyThreads(options)), copy_out_(CopyThreads(options)) {}

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Create(const DeviceOptions& options,
                                                           std::vector<LayerWeights> weights) {
  if (options.geometry.hidden_size > kMaxHidden) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden_size = ", options.geometry.hidden_size, ": must be <= ", kMaxHidden, " on CUDA"));
  }
  if (options.geometry.conv_kernel_size > kMaxConvTaps) {
    return absl::InvalidArgumentError(absl::StrCat("conv_kernel_size = ", options.geometry.conv_kernel_size,
                                                   ": must be <= ", kMaxConvTaps, " on CUDA"));
  }
  // Kernels count the values of a batch in 32 bits.
  if (uint64_t{options.max_tokens} * options.geometry.embed_dim > 0xFFFFFFFF) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens = ", options.max_tokens,
                                                   ": must be <= ", 0xFFFFFFFF / options.geometry.embed_dim,
                                                   " on CUDA, with ple_embed_dim ", options.geometry.embed_dim));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(options));
  PLEIAD_RETURN_IF_ERROR(device->Start(std::move(weights)));
  return device;
}

absl::Status CudaDevice::Start(std::vector<LayerWeights> weights) {
  PLEIAD_ASSIGN_OR_RETURN(const CudaGpu gpu, FindCudaGpu(options_.cuda_ordinal));
  info_.name = absl::StrCat("cuda:", options_.cuda_ordinal);
  info_.detail = gpu.name;
  info_.pipeline_depth = kSlots;
  info_.run_cost = RunCost::kEnqueueing;
  if (absl::StatusOr<std::unique_ptr<CudaIpc>> ipc = CudaIpc::Create(static_cast<int>(options_.cuda_ordinal));
      ipc.ok()) {
    info_.gpu_uuid = (*ipc)->gpu_uuid();
    imports_ = ImportTable::Create(*std::move(ipc));
  }
  PLEIAD_ASSIGN_OR_RETURN(compute_, MakeStream(StreamPriority::kNormal));
  PLEIAD_ASSIGN_OR_RETURN(upload_, MakeStream(StreamPriority::kHigh));
  PLEIAD_ASSIGN_OR_RETURN(download_, MakeStream(StreamPriority::kHigh));
  for (size_t i = 0; i < weights.size(); ++i) {
    std::optional<float> scale;
    if (options_.row_dtype == DType::kF8E4M3) scale = options_.row_scales[i];
    PLEIAD_ASSIGN_OR_RETURN(LayerMemory layer, LayerMemory::Create(options_.geometry, weights[i], scale));
    weights[i] = LayerWeights();
    layers_.push_back(std::move(layer));
  }
  PLEIAD_RETURN_IF_ERROR(AllocateRows());
  PLEIAD_RETURN_IF_ERROR(AllocateStage());
  if (options_.cuda_graphs) CaptureGraphs();
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  Describe();
  return absl::OkStatus();
}

absl::Status CudaDevice::AllocateRows() {
  row_bytes_ = options_.geometry.head_dim() * static_cast<uint32_t>(ByteSize(options_.row_dtype));
  const uint64_t staging_bytes = uint64_t{options_.staging_rows} * row_bytes_;
  PLEIAD_ASSIGN_OR_RETURN(arena_, AllocateDevice("arena", options_.arena_slots * row_bytes_));
  PLEIAD_ASSIGN_OR_RETURN(staging_, AllocatePinned("staging", staging_bytes));
  PLEIAD_ASSIGN_OR_RETURN(device_staging_, AllocateDevice("staging on the device", staging_bytes));
  return absl::OkStatus();
}

absl::Status CudaDevice::AllocateStage() {
  const Geometry& geometry = options_.geometry;
  const uint64_t channels = geometry.channels();
  carries_.state_len = geometry.state_len();
  carries_.ring_rows = geometry.state_len() + options_.rollback_tokens;
  carries_.channels = geometry.channels();
  PLEIAD_ASSIGN_OR_RETURN(carry_rows_,
                          AllocateDevice("carry pool", CarryPool::Bytes(options_.carries, geometry.state_len(),
                                                                        options_.rollback_tokens, channels)));
  carries_.rows = carry_rows_.As<float>();

  // A graph's padding reads and writes scratch behind the batch.
  scratch_tokens_ = std::max(options_.max_tokens, kGraphTokens);
  PLEIAD_ASSIGN_OR_RETURN(embeddings_, AllocateDevice("scratch of embeddings",
                                                      uint64_t{scratch_tokens_} * geometry.embed_dim * sizeof(Bf16)));
  PLEIAD_ASSIGN_OR_RETURN(
      key_value_,
      AllocateDevice("scratch of keys and values", scratch_tokens_ * (channels + geometry.hidden_size) * sizeof(Bf16)));
  PLEIAD_ASSIGN_OR_RETURN(
      gates_, AllocateDevice("scratch of gates", uint64_t{scratch_tokens_} * geometry.hc_count * sizeof(ChainGate)));
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaMemset(gates_.data(), 0, gates_.size()), "cudaMemset"));
  PLEIAD_ASSIGN_OR_RETURN(
      gemm_, KeyValueGemm::Create(geometry.channels() + geometry.hidden_size, geometry.embed_dim, scratch_tokens_,
                                  options_.batch_invariant ? SumOrder::kInvariant : SumOrder::kFastest));

  PLEIAD_RETURN_IF_ERROR(gemm_->Tune(layers_[0].pointers().key_value, embeddings_.As<uint16_t>(),
                                     key_value_.As<uint16_t>(), compute_.get()));

  int multiprocessors = 0;
  PLEIAD_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, static_cast<int>(options_.cuda_ordinal)),
      "cudaDeviceGetAttribute"));
  shape_.geometry = geometry;
  shape_.rollback_tokens = options_.rollback_tokens;
  shape_.staging_rows = options_.staging_rows;
  shape_.carries = options_.carries;
  PLEIAD_RETURN_IF_ERROR(ToStatus(PrepareGateConv(geometry.hidden_size, geometry.hc_count, geometry.conv_kernel_size,
                                                  static_cast<uint32_t>(multiprocessors), &gate_conv_),
                                  "preparing gate and conv"));
  shape_.concurrent_items = gate_conv_.concurrent_items;
  multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  PLEIAD_RETURN_IF_ERROR(ToStatus(PrepareProjectRows(geometry.channels() + geometry.hidden_size, geometry.embed_dim,
                                                     geometry.head_dim(), &project_rows_tokens_),
                                  "preparing the projection of few tokens"));
  PLEIAD_ASSIGN_OR_RETURN(hashes_, RowHashes::Create(options_.row_hashes));
  const PlanRows rows = options_.row_hashes.empty() ? PlanRows::kPlaces : PlanRows::kTokens;
  info_.hashes_rows = rows == PlanRows::kTokens;
  for (BatchSlot& slot : slots_) {
    PLEIAD_ASSIGN_OR_RETURN(slot, BatchSlot::Create(shape_, options_.max_tokens, scratch_tokens_, rows));
  }
  // Snapshots of all layers, twice as many as batches are in flight, before one waits for the oldest.
  const uint32_t places = 2 * kSlots * static_cast<uint32_t>(layers_.size());
  PLEIAD_ASSIGN_OR_RETURN(carry_io_, CarryIo::Create(places, carries_.state_len * channels * sizeof(float)));
  return absl::OkStatus();
}

// A batch whose graph is missing runs launch by launch.
void CudaDevice::CaptureGraphs() {
  const uint32_t last = GraphBucket(std::min(options_.max_tokens, kGraphTokens));
  for (BatchSlot& slot : slots_) {
    slot.graphs.resize(layers_.size());
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      slot.graphs[layer].resize(last + 1);
      for (uint32_t bucket = 0; bucket <= last; ++bucket) {
        absl::StatusOr<GraphExec> graph = Capture(slot, LayerOrdinal(layer), 1u << bucket);
        if (graph.ok()) {
          slot.graphs[layer][bucket] = *std::move(graph);
          continue;
        }
        // What failed must not be taken for the next launch's error.
        cudaGetLastError();
        capture_error_ = std::string(graph.status().message());
        MutexLock lock(&mutex_);
        ++stats_.capture_failures;
      }
    }
  }
}

absl::StatusOr<GraphExec> CudaDevice::Capture(BatchSlot& slot, LayerOrdinal layer, uint32_t tokens) {
  PLEIAD_RETURN_IF_ERROR(
      ToStatus(cudaStreamBeginCapture(compute_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
  absl::Status status = EnqueueStage(slot, layer, PlanImageLayout(shape_, kGraphTokens), {tokens, tokens, tokens});
  cudaGraph_t captured = nullptr;
  status.Update(ToStatus(cudaStreamEndCapture(compute_.get(), &captured), "cudaStreamEndCapture"));
  const Graph graph(captured);
  PLEIAD_RETURN_IF_ERROR(status);
  cudaGraphExec_t made = nullptr;
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaGraphInstantiate(&made, graph.get(), 0), "cudaGraphInstantiate"));
  GraphExec exec(made);
  PLEIAD_RETURN_IF_ERROR(ToStatus(cudaGraphUpload(exec.get(), compute_.get()), "cudaGraphUpload"));
  return exec;
}

cudaGraphExec_t CudaDevice::FindGraph(const BatchSlot& slot, LayerOrdinal layer, uint32_t tokens) const {
  if (slot.graphs.empty() || tokens > kGraphTokens) return nullptr;
  return slot.graphs[layer.value()][GraphBucket(tokens)].get();
}

void CudaDevice::Describe() {
  absl::StrAppend(&info_.detail, ", ", gemm_->detail(), ", ");
  if (!options_.cuda_graphs) {
    absl::StrAppend(&info_.detail, "no graphs");
  } else if (capture_error_.empty()) {
    absl::StrAppend(&info_.detail, "graphs up to ", kGraphTokens, " tokens");
  } else {
    absl::StrAppend(&info_.detail, "graphs failed, batches run launch by launch: ", capture_error_);
  }
  info_.memory.arena = arena_.size();
  info_.memory.staging = staging_.size();
  info_.memory.carries = carry_rows_.size();
  for (const LayerMemory& layer : layers_) info_.memory.weights += layer.bytes();
  info_.memory.scratch = device_staging_.size() + embeddings_.size() + key_value_.size() + gates_.size() +
                         gemm_->workspace_bytes() + hashes_.bytes();
  info_.memory.pinned = carry_io_.pinned_bytes();
  for (const BatchSlot& slot : slots_) {
    info_.memory.scratch += slot.device_image.size() + slot.hashed_rows.size() + slot.tensors.device_bytes();
    info_.memory.pinned += slot.image.size() + slot.tensors.pinned_bytes();
  }
}

}  // namespace cuda

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions& options,
                                                         std::vector<LayerWeights> weights) {
  PLEIAD_RETURN_IF_ERROR(CheckDevice(options, weights));
  return cuda::CudaDevice::Create(options, std::move(weights));
}

}  // namespace pleiad
