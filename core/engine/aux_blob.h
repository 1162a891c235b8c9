// The carry as bytes, little-endian: u32 hist_len | hist_len x u32 token ids, oldest first |
// [state_len, C] F32 conv rows, oldest first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/model/geometry.h"

namespace pleiad {

struct AuxBlob {
  bool fresh = false;             // hist_len 0: everything else is ignored
  std::vector<uint32_t> history;  // [context_len], oldest first
  std::vector<float> conv_rows;   // [state_len, C]; never judged
};

// Parses and checks length and ids; allocates nothing beyond what `bytes` already holds. InvalidArgument with the rule,
// and the field and its value where it is not the length.
absl::StatusOr<AuxBlob> ParseAuxBlob(std::string_view bytes, const Geometry& geometry, uint32_t vocab_size);

// A string of geometry.aux_bytes() with the history in place and zero conv rows; the rows start at
// AuxConvOffset(geometry) and may be written there.
std::string MakeAuxBlob(absl::Span<const uint32_t> history, const Geometry& geometry);
size_t AuxConvOffset(const Geometry& geometry);

}  // namespace pleiad
