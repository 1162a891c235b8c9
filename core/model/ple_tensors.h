// The tensors of one PLE layer: names, shapes, dtypes, and the rules they obey. Internal to core/model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/numeric.h"
#include "core/model/config.h"
#include "core/model/hash_constants.h"
#include "core/model/table_layout.h"
#include "core/model/tensor_index.h"

namespace pleiad {

// "model.language_model.layers.{layer}.ple." and "model.layers.{layer}.ple.".
std::vector<std::string> PlePrefixes(LayerIndex layer);

// Where the dense weights lie; checked for shape and dtype.
struct DenseTensors {
  FoundTensor key_proj;
  FoundTensor value_proj;
  FoundTensor norm_key;
  FoundTensor norm_query;
  FoundTensor norm_conv;
  FoundTensor conv;
};

// The one prefix under which the layer's tensors lie. InvalidArgument where there is none or both.
absl::StatusOr<std::string> FindPrefix(const TensorIndex& index, LayerIndex layer);

// InvalidArgument naming the tensor that is missing or has another dtype or shape.
absl::StatusOr<DenseTensors> FindDenseTensors(const TensorIndex& index, absl::string_view prefix, const Geometry& g);

// Compares the stored hash buffers with `derived`; a disagreement prints both. Blocks.
absl::Status CheckHashBuffers(const TensorIndex& index, absl::string_view prefix, const HashConstants& derived);

// Orders and checks the shards of the table and reads the scale of FP8 rows. Blocks.
absl::StatusOr<TableLayout> FindTable(const TensorIndex& index, absl::string_view prefix, uint32_t head_dim,
                                      uint64_t usable_rows);

}  // namespace pleiad
