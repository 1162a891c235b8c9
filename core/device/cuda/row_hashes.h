// The constants of the row hashes of all layers in device memory. Constant after Create.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/owners.h"
#include "core/device/cuda/plan_image.h"
#include "core/device/device.h"

namespace pleiad::cuda {

class RowHashes {
 public:
  // `hashes` [layers]; none: empty.
  static absl::StatusOr<RowHashes> Create(absl::Span<const RowHash> hashes);

  // What is the same for all batches of a layer.
  const HashArgs& of(LayerOrdinal layer) const { return args_[layer.value()]; }
  uint64_t bytes() const { return constants_.size(); }

 private:
  std::vector<HashArgs> args_;
  DeviceMemoryBlock constants_;
};

// What the kernel is given for a batch whose plan was written to `image` with PlanRows::kTokens.
HashArgs HashArgsOf(const HashArgs& of_layer, const PlanImageLayout& layout, const PlanImageCounts& counts,
                    uint32_t num_tokens, const PinnedMemoryBlock& image, const DeviceMemoryBlock& device_image,
                    const DeviceMemoryBlock& rows);

}  // namespace pleiad::cuda
