#include "core/base/tensor_pieces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pleiad {
namespace {

TEST(StitchPieces, EveryRangeOfEveryCutting) {
  const std::string text = "0123456789";
  for (uint32_t cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
    std::vector<std::string> parts(1);
    for (size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && (cuts >> (i - 1) & 1) != 0) parts.emplace_back();
      parts.back().push_back(text[i]);
    }
    std::vector<TensorPiece> pieces;
    uint64_t at = 0;
    for (const std::string& part : parts) {
      pieces.push_back({reinterpret_cast<const std::byte*>(part.data()), at, part.size()});
      at += part.size();
    }
    for (size_t from = 0; from < text.size(); ++from) {
      for (size_t bytes = 1; bytes <= text.size() - from; ++bytes) {
        std::string scratch(text.size() + 1, '-');
        auto* room = reinterpret_cast<std::byte*>(scratch.data());
        const std::byte* found = StitchPieces(pieces, from, bytes, room);
        ASSERT_EQ(std::string(reinterpret_cast<const char*>(found), bytes), text.substr(from, bytes));
        const bool crosses = (cuts >> from & ((1u << (bytes - 1)) - 1)) != 0;
        ASSERT_EQ(found == room, crosses) << "copied where it need not be, or not where it must";
        ASSERT_EQ(scratch.substr(crosses ? bytes : 0), std::string(scratch.size() - (crosses ? bytes : 0), '-'));
      }
    }
  }
}

}  // namespace
}  // namespace pleiad
