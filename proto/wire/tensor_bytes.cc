#include "proto/wire/tensor_bytes.h"

#include <cstring>
#include <utility>

namespace pleiad {

TensorBytes::TensorBytes(absl::Span<const grpc::Slice> slices, absl::Span<const Range> ranges) {
  for (const Range& range : ranges) size_ += range.bytes;
  if (ranges.size() >= kManyPieces && size_ / ranges.size() < kSmallBytes) {
    slices_.emplace_back(size_);
    auto* out = const_cast<uint8_t*>(slices_.back().begin());
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(out), size_);
    for (const Range& range : ranges) {
      std::memcpy(out, slices[range.slice].begin() + range.offset, range.bytes);
      out += range.bytes;
    }
    return;
  }
  slices_.reserve(ranges.size());
  pieces_.reserve(ranges.size());
  for (const Range& range : ranges) {
    if (range.bytes == 0) continue;
    slices_.push_back(slices[range.slice]);
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slices_.back().begin()) + range.offset, range.bytes);
  }
}

TensorBytes& TensorBytes::operator=(TensorBytes&& other) noexcept {
  slices_ = std::exchange(other.slices_, {});
  pieces_ = std::exchange(other.pieces_, {});
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void TensorBytes::CopyTo(std::byte* out) const {
  for (const Piece& piece : pieces_) {
    std::memcpy(out, piece.data(), piece.size());
    out += piece.size();
  }
}

}  // namespace pleiad
