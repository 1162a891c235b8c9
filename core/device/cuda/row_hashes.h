// The constants of the row hashes of all layers in device memory. Constant after Create.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/owners.h"
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

}  // namespace pleiad::cuda
