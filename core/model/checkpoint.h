// A qwen4_exp checkpoint folder: config, safetensors files, the PLE layers in them. Opening reads config,
// headers and the small hash buffers; rows are never read here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/strong_id.h"
#include "core/base/unique_fd.h"
#include "core/model/config.h"
#include "core/model/hash_constants.h"
#include "core/model/layer_weights.h"
#include "core/model/table_layout.h"

namespace pleiad {

struct CheckpointFile {
  std::string path;
  UniqueFd fd;         // open for reading
  uint64_t bytes = 0;  // size when opened
};

struct PleLayer {
  LayerIndex index;
  HashConstants hash;
  TableLayout table;
};

struct CheckpointOptions {
  std::string dir;
  std::optional<uint32_t> eos_token_id;  // replaces the config's
};

// Immutable and thread-safe after Open.
class Checkpoint {
 public:
  // Finds tensors through model.safetensors.index.json, else by scanning *.safetensors headers. Only the files
  // that hold PLE tensors must exist. Blocks. Errors name the field or tensor, the value and the rule:
  //   NotFound            the folder, config.json or a needed file is missing
  //   InvalidArgument     config, header, shape, dtype, range or hash constants are wrong
  //   FailedPrecondition  the config names no PLE layer
  //   DataLoss            a file is shorter than its header says
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const CheckpointOptions& options);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const ModelConfig& config() const;
  // Index = LayerOrdinal. All layers have one head_dim and one row dtype.
  const std::vector<PleLayer>& layers() const;
  // Files that hold PLE tensors; FileIndex points here.
  const std::vector<CheckpointFile>& files() const;

  // Reads the dense weights of a layer (65.5 MB at released geometry); blocks. DataLoss on a short or failed read.
  absl::StatusOr<LayerWeights> LoadWeights(LayerOrdinal layer) const;

  // Fingerprint of geometry, hash constants and dense weights, as hex. `weights` [layers] as LoadWeights gave
  // them. Row values do not enter.
  std::string ModelId(const std::vector<LayerWeights>& weights) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pleiad
