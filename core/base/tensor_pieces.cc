#include "core/base/tensor_pieces.h"

#include <algorithm>
#include <cstring>

namespace pleiad {

const std::byte* StitchPieces(absl::Span<const TensorPiece> pieces, uint64_t offset, uint64_t bytes,
                              std::byte* scratch) {
  const auto after = std::upper_bound(pieces.begin(), pieces.end(), offset,
                                      [](uint64_t at, const TensorPiece& piece) { return at < piece.offset; });
  auto piece = after - 1;
  uint64_t skipped = offset - piece->offset;
  if (bytes <= piece->bytes - skipped) return piece->data + skipped;
  for (uint64_t done = 0; done < bytes; ++piece, skipped = 0) {
    const uint64_t here = std::min(bytes - done, piece->bytes - skipped);
    std::memcpy(scratch + done, piece->data + skipped, here);
    done += here;
  }
  return scratch;
}

}  // namespace pleiad
