#include "core/model/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/unique_fd.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr uint64_t kBig = 1 << 20;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& json, uint64_t file_bytes = kBig) {
  return ParseSafetensorsHeader(json, file_bytes, "f.safetensors");
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

std::string Document(const std::vector<std::string>& entries) {
  return absl::StrCat("{", absl::StrJoin(entries, ","), "}");
}

absl::StatusOr<SafetensorsHeader> ParseOne(const std::string& dtype, const std::string& shape,
                                           const std::string& offsets) {
  return Parse(Document({Entry("t", dtype, shape, offsets)}));
}

absl::StatusOr<SafetensorsHeader> ReadBytes(const std::string& bytes) {
  testing::TempDir dir;
  testing::WriteFile(dir / "f.safetensors", bytes);
  const UniqueFd fd(::open((dir / "f.safetensors").c_str(), O_RDONLY));
  return ReadSafetensorsHeader(fd.get(), bytes.size(), "f.safetensors");
}

std::string WithLength(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

TEST(SafetensorsTest, ReadsTensorsAtTheirPlaces) {
  const std::string json = Document({"\"__metadata__\":{\"format\":\"pt\"}", Entry("a", "BF16", "[2,3]", "[8,20]"),
                                     Entry("b", "I64", "[1]", "[0,8]"), Entry("c", "F32", "[]", "[20,24]")});
  const auto header = ReadBytes(WithLength(json.size(), json + std::string(24, 'x')));
  ASSERT_THAT(header, IsOk());
  ASSERT_EQ(header->size(), 3u);
  const TensorInfo& a = header->at("a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.offset, 8 + json.size() + 8);
  EXPECT_EQ(a.bytes, 12u);
  EXPECT_TRUE(header->at("c").shape.empty());
}

TEST(SafetensorsTest, GapsEmptyTensorsAndUnknownDTypesPass) {
  EXPECT_THAT(Parse(Document({Entry("a", "U8", "[4]", "[0,4]"), Entry("b", "U8", "[4]", "[100,104]")})), IsOk());
  EXPECT_THAT(ParseOne("F32", "[0,7]", "[4,4]"), IsOk());
  EXPECT_THAT(ParseOne("F4_E2M1", "[7]", "[0,4]"), IsOk());
  EXPECT_THAT(Parse("{}"), IsOk());
}

TEST(SafetensorsTest, WrongFieldsAreRefusedByTensor) {
  EXPECT_THAT(Parse("{\"t\":3}"), FailsWith(kInvalid, "tensor t"));
  EXPECT_THAT(Parse("{\"t\":[]}"), FailsWith(kInvalid, "must be an object"));
  EXPECT_THAT(Parse("{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}"), FailsWith(kInvalid, "dtype"));
  EXPECT_THAT(Parse("{\"t\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}"), FailsWith(kInvalid, "dtype"));
  EXPECT_THAT(Parse("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}"), FailsWith(kInvalid, "shape is missing"));
  EXPECT_THAT(Parse("{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}"), FailsWith(kInvalid, "data_offsets is missing"));
  for (const char* shape : {"3", "[-1]", "[1.0]", "[\"1\"]", "[[1]]", "{}", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"}) {
    EXPECT_THAT(ParseOne("U8", shape, "[0,1]"), FailsWith(kInvalid, "shape")) << shape;
  }
  for (const char* offsets : {"[]", "[0]", "[0,1,2]", "[1,0]", "[-1,0]", "[0,1.0]", "[0,18446744073709551615]",
                              "[0,9223372036854775807]", "[18446744073709551615,0]", "[0,18446744073709551616]"}) {
    EXPECT_THAT(ParseOne("U8", "[1]", offsets), FailsWith(kInvalid, "data_offsets")) << offsets;
  }
}

TEST(SafetensorsTest, SizesThatDisagreeWithTheShapeAreRefused) {
  EXPECT_THAT(ParseOne("BF16", "[4]", "[0,8]"), IsOk());
  EXPECT_THAT(ParseOne("BF16", "[4]", "[0,4]"), FailsWith(kInvalid, "is 8 bytes, data_offsets span 4"));
  EXPECT_THAT(ParseOne("F8_E4M3", "[4]", "[0,8]"), FailsWith(kInvalid, "is 4 bytes, data_offsets span 8"));
  EXPECT_THAT(ParseOne("U8", "[0]", "[0,1]"), FailsWith(kInvalid, "is 0 bytes"));
}

TEST(SafetensorsTest, ShapesThatOverflowAreRefused) {
  // 2^32 * 2^32 wraps to 0, and 2^61 * 8 wraps to 0: neither may equal an empty range.
  EXPECT_THAT(ParseOne("U8", "[4294967296,4294967296]", "[0,0]"), FailsWith(kInvalid, "passes 2^64"));
  EXPECT_THAT(ParseOne("I64", "[2305843009213693952]", "[0,0]"), FailsWith(kInvalid, "passes 2^64"));
}

TEST(SafetensorsTest, OverlapsAreRefusedNamingBoth) {
  const auto header = Parse(Document({Entry("a", "U8", "[8]", "[0,8]"), Entry("b", "U8", "[8]", "[7,15]")}));
  EXPECT_THAT(header, FailsWith(kInvalid, "tensor b: overlaps tensor a"));
  const auto same = Parse(Document({Entry("a", "U8", "[8]", "[0,8]"), Entry("b", "U8", "[8]", "[0,8]")}));
  EXPECT_THAT(same, FailsWith(kInvalid, "overlaps"));
  EXPECT_THAT(Parse(Document({Entry("a", "U8", "[8]", "[0,8]"), Entry("b", "U8", "[8]", "[8,16]")})), IsOk());
}

TEST(SafetensorsTest, DuplicateKeysDepthAndNonObjectsAreRefused) {
  const std::string entry = Entry("a", "U8", "[8]", "[0,8]");
  EXPECT_THAT(Parse(Document({entry, entry})), FailsWith(kInvalid, "given twice"));
  EXPECT_THAT(Parse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\"}}"), FailsWith(kInvalid, "given twice"));
  EXPECT_THAT(Parse(absl::StrCat("{\"a\":", std::string(100000, '['))), FailsWith(kInvalid, "nested deeper"));
  EXPECT_THAT(Parse("[]"), FailsWith(kInvalid, "must be an object"));
  EXPECT_THAT(Parse("nonsense"), FailsWith(kInvalid, "not JSON"));
  EXPECT_THAT(Parse(""), FailsWith(kInvalid, "not JSON"));
}

TEST(SafetensorsTest, B09_AFileShorterThanItsHeaderIsDataLossNamingBothSizes) {
  const std::string json = Document({Entry("a", "U8", "[8]", "[0,8]")});
  const uint64_t full = 8 + json.size() + 8;
  EXPECT_THAT(Parse(json, full), IsOk());
  const auto cut = Parse(json, full - 1);
  EXPECT_THAT(cut, FailsWith(kDataLoss, absl::StrCat("needs ", full, " bytes, the file has ", full - 1, " bytes")));
}

TEST(SafetensorsTest, HeaderLengthsBeyondTheFileOrTheLimitAreRefused) {
  EXPECT_THAT(ReadBytes(""), FailsWith(kDataLoss, "needs 8 bytes, the file has 0 bytes"));
  EXPECT_THAT(ReadBytes("1234567"), FailsWith(kDataLoss, "needs 8 bytes, the file has 7 bytes"));
  EXPECT_THAT(ReadBytes(WithLength(2, "{}")), IsOk());
  EXPECT_THAT(ReadBytes(WithLength(3, "{}")), FailsWith(kDataLoss, "needs 11 bytes, the file has 10 bytes"));
  EXPECT_THAT(ReadBytes(WithLength(100000000, "{}")), FailsWith(kDataLoss, "needs 100000008 bytes"));
  EXPECT_THAT(ReadBytes(WithLength(100000001, "{}")), FailsWith(kInvalid, "header length is 100000001"));
  EXPECT_THAT(ReadBytes(WithLength(~uint64_t{0}, "{}")), FailsWith(kInvalid, "header length"));
  EXPECT_THAT(ReadBytes(WithLength(0, "{}")), FailsWith(kInvalid, "not JSON"));
}

TEST(SafetensorsTest, HostileNamesAreEscapedInErrors) {
  const auto header = Parse("{\"a\\u0007b\":3}");
  EXPECT_THAT(header, FailsWith(kInvalid, "tensor a\\007b"));
}

}  // namespace
}  // namespace pleiad
