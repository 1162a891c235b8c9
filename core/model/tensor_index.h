// Which file of a checkpoint folder holds which tensor. Internal to core/model.
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/model/checkpoint.h"
#include "core/model/safetensors.h"
#include "core/model/table_layout.h"

namespace pleiad {

struct FoundTensor {
  FileIndex file = 0;
  TensorInfo info;
};

struct TensorIndex {
  absl::btree_map<std::string, FoundTensor> tensors;
  std::vector<CheckpointFile> files;  // that hold one of `tensors`, by name
};

// Finds the tensors whose names start with one of `prefixes`: through model.safetensors.index.json, which is then the
// truth, else in the headers of all *.safetensors files of `dir`. Blocks.
//   NotFound         a file that holds such a tensor is missing
//   InvalidArgument  the index or a header is wrong, an entry leaves the folder, a tensor lies in two files
//   DataLoss         a file is shorter than its header says, or cannot be read
absl::StatusOr<TensorIndex> FindTensors(const std::string& dir, absl::Span<const std::string> prefixes);

// The whole of a small text file. NotFound; InvalidArgument past `max_bytes`; DataLoss.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

}  // namespace pleiad
