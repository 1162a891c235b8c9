// A tensor that lies in several places of memory, as a message of the network does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace pleiad {

// Bytes [offset, offset + bytes) of the tensor. The pieces of a tensor are in order, leave no gap, and end anywhere,
// also within a value.
struct TensorPiece {
  const std::byte* data = nullptr;  // any alignment
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Where bytes [offset, offset + bytes) of the tensor can be read: in their place where one piece has them all, else
// copied to `scratch`, which has room for them. The pieces cover the range.
const std::byte* StitchPieces(absl::Span<const TensorPiece> pieces, uint64_t offset, uint64_t bytes,
                              std::byte* scratch);

}  // namespace pleiad
