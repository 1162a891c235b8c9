// The ids of cached rows in a file, so that the next start can read them back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"

namespace pleiad {

// The rows of each layer, [layers], in the order to read them back.
using WarmRows = std::vector<std::vector<RowId>>;

// Replaces `path` as a whole or not at all: a temporary name beside it, mode 0600, synced to the disk, then renamed;
// removed when that fails.
// `model_id` names the model whose rows they are. Blocks. Unavailable naming the path and the reason.
absl::Status SaveWarmRows(const std::string& path, const std::string& model_id, const WarmRows& rows);

// `table_rows` [layers]. Blocks. Returns
//   NotFound            there is no such file
//   FailedPrecondition  it is of another model, or of another version of this file
//   DataLoss            it is torn or damaged: length, checksum or an id past its table
absl::StatusOr<WarmRows> LoadWarmRows(const std::string& path, const std::string& model_id,
                                      absl::Span<const uint64_t> table_rows);

}  // namespace pleiad
