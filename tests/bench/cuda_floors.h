// What the stage on a GPU is measured against: the copy bandwidth, the projection alone, and its own kernels without
// the projection, each over buffers that rotate through more memory than the L2 cache holds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/device/cuda/kernels.h"
#include "core/device/cuda/key_value_gemm.h"
#include "core/device/cuda/layer_memory.h"
#include "core/device/cuda/owners.h"
#include "core/device/cuda/plan_image.h"
#include "core/model/geometry.h"

namespace pleiad::bench {

// Ends the program with the text of a status that is not OK.
void OrExit(const absl::Status& status);

// Device memory filled with pseudo-random floats in [-1, 1), repeated every 16 MB.
cuda::DeviceMemoryBlock RandomFloats(uint64_t bytes, uint32_t seed);

// Device time of one call of `enqueue`, which gets the number of the call and the stream: about `rounds` calls, the
// median of rows of 20.
double DeviceMicroseconds(uint32_t rounds, const std::function<void(uint32_t, cudaStream_t)>& enqueue);

// Bytes read and written per second by a large copy on the device.
double CopyBandwidth();

enum class ProjectionKernel { kFew, kRows };

class Floors {
 public:
  static constexpr uint32_t kWeightCopies = 4;

  Floors(const Geometry& geometry, const std::vector<LayerWeights>& weights, uint32_t max_tokens, cuda::SumOrder order);

  // The library's first choice, and after TuneGemm what is fastest of its choices.
  double Gemm(uint32_t tokens, uint32_t rounds);
  void TuneGemm();
  // Gather, gate and conv of one segment of `tokens`, FP32 highway not in place.
  double OtherKernels(uint32_t tokens, uint32_t rounds);
  // What finds the rows of `tokens` from their ids in pinned memory, and brings the plan along.
  double RowHash(uint32_t tokens, uint32_t rounds);
  // Gather and projection in one kernel, of a shape that it takes.
  double OneKernelProjection(uint32_t tokens, uint32_t rounds, ProjectionKernel kernel);

 private:
  cuda::PlanShape Shape() const;
  // All but where its rows are.
  BatchPlan OneSegment(uint32_t tokens) const;

  const Geometry geometry_;
  std::vector<cuda::LayerMemory> layers_;
  std::unique_ptr<cuda::KeyValueGemm> gemm_;
  uint32_t multiprocessors_ = 1;
  cuda::GateConvSetup setup_;
  cuda::DeviceMemoryBlock rows_;       // BF16 table
  cuda::DeviceMemoryBlock e_;          // BF16 [max_tokens, E]
  cuda::DeviceMemoryBlock key_value_;  // BF16 [max_tokens, C + H], random
  cuda::DeviceMemoryBlock y_;
  cuda::DeviceMemoryBlock gates_;
  cuda::DeviceMemoryBlock carry_;
};

}  // namespace pleiad::bench
