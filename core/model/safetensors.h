// Headers of safetensors files: u64 length, that many bytes of JSON, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

// Longest header read; the format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string dtype;  // as written, e.g. "BF16"; dtypes unknown here pass
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
};

using SafetensorsHeader = absl::flat_hash_map<std::string, TensorInfo>;

// Checks the JSON of a header of a file of `file_bytes` bytes; `path` names the file in errors. In what it returns
// every tensor lies inside the file, no two overlap, and sizes equal shape times dtype where the dtype is a known one.
//   InvalidArgument  not JSON, duplicate keys, wrong or missing fields, overflow, overlap, size against shape
//   DataLoss         the file is shorter than its tensors need: both sizes are named
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, uint64_t file_bytes,
                                                         absl::string_view path);

// Reads and checks the header of an open file. Blocks. Besides the above: InvalidArgument where the header's length is
// over the limit, DataLoss where the file ends inside it or a read fails.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(int fd, uint64_t file_bytes, absl::string_view path);

// Reads exactly `bytes` bytes at `offset`. Blocks; DataLoss naming file, offset and what came.
absl::Status ReadExactly(int fd, uint64_t offset, void* out, uint64_t bytes, absl::string_view path);

}  // namespace pleiad
