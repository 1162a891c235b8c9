// Snapshots on disk: a serialised pleiad.v1.SnapshotResponse whose layers all carry their crc32.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/types.h"

namespace pleiad::cli {

// Replaces the file as a whole, readable by its owner alone. Unknown when it cannot be written.
absl::Status WriteSnapshot(const std::string& path, const client::SequenceSnapshot& snapshot);
// NotFound; DataLoss when the file does not parse or a crc32 is absent or wrong.
absl::StatusOr<client::SequenceSnapshot> ReadSnapshot(const std::string& path);

}  // namespace pleiad::cli
