// Which tensors a synthetic checkpoint has and where they lie; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/synth.h"
#include "core/base/numeric.h"

namespace pleiad {

struct SynthTensor {
  enum class Content { kRows, kUniform, kIntegers, kScale };

  std::string name;
  DType dtype = DType::kBf16;
  std::vector<uint64_t> shape;
  Content content = Content::kUniform;
  float limit = 0;                 // of kUniform
  std::vector<uint64_t> integers;  // of kIntegers
  uint64_t offset = 0;             // bytes from the start of the file's data

  uint64_t bytes() const;
};

struct SynthFile {
  std::string name;                  // model-00001-of-00008.safetensors
  std::vector<SynthTensor> tensors;  // in the order of their data, without gaps
  uint64_t data_bytes = 0;
};

// `options` has passed Validate(). Tensors in text order of their names, cut into files of about equal size.
std::vector<SynthFile> PlanSynthFiles(const SynthOptions& options);

// The file's first bytes: u64 length, JSON padded with spaces to a multiple of 8.
std::string SafetensorsHeader(const SynthFile& file);

// Texts of model.safetensors.index.json and config.json.
std::string SynthIndexJson(const std::vector<SynthFile>& files);
std::string SynthConfigJson(const SynthOptions& options);

}  // namespace pleiad
