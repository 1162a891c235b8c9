// The bytes of a tensor where they lie in a message that was received: pieces of the message's slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "grpcpp/support/slice.h"

namespace pleiad {

// Keeps the slices it points into alive, and no others. Moving it leaves its pieces where they are. Where a message was
// cut so small that keeping track would cost more than its bytes, they are copied into one piece.
class TensorBytes {
 public:
  using Piece = absl::Span<const std::byte>;
  // A part of a slice.
  struct Range {
    size_t slice = 0;
    size_t offset = 0;
    size_t bytes = 0;
  };

  // From this many pieces on their mean size counts.
  static constexpr size_t kManyPieces = 64;
  static constexpr size_t kSmallBytes = 512;

  TensorBytes() = default;
  // The ranges are in order, within `slices`; empty ones are left out.
  TensorBytes(absl::Span<const grpc::Slice> slices, absl::Span<const Range> ranges);
  TensorBytes(TensorBytes&& other) noexcept { *this = std::move(other); }
  // `other` is empty afterwards.
  TensorBytes& operator=(TensorBytes&& other) noexcept;

  // In order, none of them empty. They end anywhere, also within a value.
  absl::Span<const Piece> pieces() const { return pieces_; }
  uint64_t size() const { return size_; }
  // Writes size() bytes to `out`.
  void CopyTo(std::byte* out) const;

 private:
  std::vector<grpc::Slice> slices_;  // short ones hold their bytes themselves, so they never move
  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
};

}  // namespace pleiad
