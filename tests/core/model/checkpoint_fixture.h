// Opening test checkpoints and reading their rows back.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/model/checkpoint.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

inline absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDir(const std::string& dir) {
  return Checkpoint::Open({dir, std::nullopt});
}

// Writes and opens in a folder that is gone afterwards: only the open files remain.
inline absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const TestCheckpoint& checkpoint) {
  TempDir dir;
  checkpoint.Write(dir.path());
  return OpenDir(dir.path());
}

inline absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const CheckpointSpec& spec) {
  return Open(MakeCheckpoint(spec));
}

// The row's bytes as they lie in the files.
inline std::string ReadRow(const Checkpoint& checkpoint, const PleLayer& layer, uint64_t row) {
  const RowLocation place = layer.table.Locate(RowId(row));
  std::string bytes(place.bytes, '\0');
  const int fd = checkpoint.files()[place.file].fd.get();
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(place.offset));
  bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return bytes;
}

// The bytes a row of a labelled table has.
inline std::string LabelledRow(DType dtype, uint64_t row, uint32_t head_dim) {
  std::string bytes;
  for (uint32_t i = 0; i < head_dim; ++i) {
    const auto number = static_cast<float>(row);
    const Bf16 bf16 = FloatToBf16(number);
    if (dtype == DType::kF32) bytes.append(reinterpret_cast<const char*>(&number), 4);
    if (dtype == DType::kBf16) bytes.append(reinterpret_cast<const char*>(&bf16), 2);
    if (dtype == DType::kF8E4M3) bytes.push_back(static_cast<char>(row));
  }
  return bytes;
}

// A labelled table cut into 16 shards of 16 rows over 3 files, so that shard_10 sorts before shard_2.
inline CheckpointSpec AwkwardShards(DType dtype) {
  CheckpointSpec spec;
  spec.row_dtype = dtype;
  spec.row_values = RowValues::kLabelled;
  spec.shards = 16;
  spec.files = 3;
  return spec;
}

}  // namespace pleiad::testing
