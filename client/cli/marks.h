// A checksum of a tensor that costs next to nothing and that no page of it escapes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace pleiad::cli {

// Of every kBlock bytes the first kMark are looked at.
inline constexpr size_t kBlock = 4096;
inline constexpr size_t kMark = 16;

// FNV-1a of the marks of a tensor that comes in pieces, in order.
class MarkSum {
 public:
  void Add(absl::Span<const std::byte> piece) {
    for (size_t i = 0; i < piece.size();) {
      const size_t in_block = (at_ + i) % kBlock;
      const size_t left = piece.size() - i;
      if (in_block >= kMark) {
        i += std::min(left, kBlock - in_block);
        continue;
      }
      const size_t end = i + std::min(left, kMark - in_block);
      for (; i < end; ++i) sum_ = (sum_ ^ static_cast<uint64_t>(piece[i])) * 0x100000001B3u;
    }
    at_ += piece.size();
  }

  uint64_t value() const { return sum_; }

 private:
  uint64_t at_ = 0;
  uint64_t sum_ = 0xCBF29CE484222325u;
};

}  // namespace pleiad::cli
