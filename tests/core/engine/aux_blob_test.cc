#include "core/engine/aux_blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace pleiad {
namespace {

using ::testing::HasSubstr;

Geometry Released() {
  Geometry geometry;
  geometry.hidden_size = 2560;
  geometry.embed_dim = 2560;
  return geometry;
}

Geometry Tiny() {
  Geometry geometry;
  geometry.hidden_size = 2;
  geometry.hc_count = 1;
  geometry.embed_dim = 16;
  geometry.conv_kernel_size = 2;
  return geometry;
}

TEST(AuxBlob, HasTheLengthOfTheReleasedModel) {
  EXPECT_EQ(Released().aux_bytes(), 368652u);
  EXPECT_EQ(MakeAuxBlob({1, 2}, Released()).size(), 368652u);
}

TEST(AuxBlob, LaysOutLengthHistoryAndRowsLittleEndian) {
  std::string blob = MakeAuxBlob({0x01020304, 5}, Tiny());
  ASSERT_EQ(blob.size(), 4u + 8u + 3 * 2 * 4u);
  EXPECT_EQ(blob.substr(0, 12), std::string("\x02\0\0\0\x04\x03\x02\x01\x05\0\0\0", 12));
  const float row = 1.5f;
  std::memcpy(blob.data() + AuxConvOffset(Tiny()) + 4, &row, 4);
  blob[4] = 9;
  blob[5] = blob[6] = blob[7] = 0;
  const AuxBlob parsed = *ParseAuxBlob(blob, Tiny(), 1000);
  EXPECT_EQ(parsed.history, (std::vector<uint32_t>{9, 5}));
  EXPECT_EQ(parsed.conv_rows[1], 1.5f);
  EXPECT_FALSE(parsed.fresh);
}

TEST(AuxBlob, EveryWrongLengthIsRefused) {
  const std::string blob = MakeAuxBlob({1, 2}, Tiny());
  for (size_t length = 0; length < blob.size() + 8; ++length) {
    std::string cut = blob;
    cut.resize(length);
    EXPECT_EQ(ParseAuxBlob(cut, Tiny(), 1000).ok(), length == blob.size()) << length;
  }
}

TEST(AuxBlob, RefusalsNameFieldValueAndRule) {
  std::string blob = MakeAuxBlob({1, 1000}, Tiny());
  EXPECT_THAT(std::string(ParseAuxBlob(blob, Tiny(), 1000).status().message()),
              HasSubstr("history[1] 1000: must be below vocab_size 1000"));
  blob[0] = 3;
  EXPECT_THAT(std::string(ParseAuxBlob(blob, Tiny(), 1000).status().message()),
              HasSubstr("hist_len 3: must be 2 or 0"));
}

TEST(AuxBlob, HistLenZeroIsFresh) {
  const std::string blob(4 + 3 * 2 * 4, '\0');
  EXPECT_TRUE(ParseAuxBlob(blob, Tiny(), 1000)->fresh);
  EXPECT_FALSE(ParseAuxBlob(blob.substr(0, 4), Tiny(), 1000).ok());
}

}  // namespace
}  // namespace pleiad
