// Against ParseAnyForwardRequest, whose judgement of any bytes is the reference.
#include "proto/wire/plain_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/wire/forward_message.h"

namespace pleiad {
namespace {

using Random = std::mt19937_64;
using Fields = std::vector<std::string>;

bool Chance(Random& random, uint32_t one_in) { return random() % one_in == 0; }

// Of any size in bytes.
uint64_t Number(Random& random) { return Chance(random, 6) ? 0 : random() >> random() % 64; }
uint32_t Number32(Random& random) { return static_cast<uint32_t>(random()) >> random() % 32; }

std::string RandomBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// `longer`: by so many bytes than need be.
std::string Varint(uint64_t value, size_t longer = 0) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  for (; longer > 0; --longer) {
    out.back() = static_cast<char>(out.back() | 0x80);
    out.push_back('\0');
  }
  return out;
}

std::string Tag(uint32_t number, uint32_t wire_type) { return Varint(number << 3 | wire_type); }
std::string VarintField(uint32_t number, uint64_t value) { return Tag(number, 0) + Varint(value); }
std::string BytesField(uint32_t number, const std::string& bytes) {
  return Tag(number, 2) + Varint(bytes.size()) + bytes;
}

std::string Fixed64(uint64_t value) {
  std::string out;
  for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<char>(value >> 8 * byte));
  return out;
}
std::string Fixed64Field(uint32_t number, uint64_t value) { return Tag(number, 1) + Fixed64(value); }

std::string Join(const Fields& fields) {
  std::string bytes;
  for (const std::string& field : fields) bytes += field;
  return bytes;
}

Fields Some(Random& random, Fields fields) {
  Fields some;
  for (std::string& field : fields) {
    if (!Chance(random, 3)) some.push_back(std::move(field));
  }
  return some;
}

Fields Region(Random& random) {
  return Some(random,
              {Fixed64Field(1, Number(random)), VarintField(2, Number(random)), VarintField(3, Number(random))});
}

Fields Segment(Random& random) {
  return Some(random, {Fixed64Field(1, Number(random)), VarintField(2, Number32(random)), VarintField(3, random() % 2),
                       VarintField(4, Number(random))});
}

Fields Output(Random& random) {
  return Some(random,
              {VarintField(1, random() % 2), VarintField(2, random() % 3), BytesField(3, Join(Region(random)))});
}

// The source comes last.
Fields Highway(Random& random) {
  Fields fields = Some(random, {VarintField(1, random() % 3)});
  switch (random() % 5) {
    case 0:
      fields.push_back(VarintField(2, random() % 2));
      break;
    case 1:
      fields.push_back(BytesField(3, Join(Region(random))));
      break;
    case 2:
      break;
    default:
      fields.push_back(BytesField(15, RandomBytes(random, random() % 200)));
  }
  return fields;
}

constexpr uint32_t kSegments = 5, kTokenIds = 6, kReleaseAfter = 9, kHighway = 15;

// A message of the plain shape, field by field.
Fields PlainRequest(Random& random) {
  Fields fields = Some(random, {VarintField(1, Number(random)), VarintField(2, Number(random)),
                                VarintField(3, random() % 2), VarintField(4, Number32(random))});
  const uint64_t segments = Chance(random, 8) ? 70 : random() % 4;
  for (uint64_t i = 0; i < segments; ++i) fields.push_back(BytesField(kSegments, Join(Segment(random))));
  std::string ids, releases;
  for (uint64_t i = Chance(random, 8) ? 200 : random() % 12; i > 0; --i) ids += Varint(Number32(random));
  for (uint64_t i = random() % 4; i > 0; --i) releases += Fixed64(random());
  for (std::string& field :
       Some(random, {BytesField(kTokenIds, ids), BytesField(7, Join(Output(random))), VarintField(8, Number32(random)),
                     BytesField(kReleaseAfter, releases), BytesField(10, Join(Region(random))),
                     BytesField(kHighway, Join(Highway(random)))})) {
    fields.push_back(std::move(field));
  }
  return fields;
}

std::vector<grpc::Slice> CutAt(const std::string& bytes, const std::vector<size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  size_t from = 0;
  for (const size_t to : cuts) {
    slices.emplace_back(bytes.data() + from, to - from);
    from = to;
  }
  slices.emplace_back(bytes.data() + from, bytes.size() - from);
  return slices;
}

std::vector<size_t> Everywhere(const std::string& bytes) {
  std::vector<size_t> cuts;
  for (size_t at = 0; at <= bytes.size(); ++at) cuts.push_back(at);
  return cuts;
}

std::string Deterministic(const v1::ForwardRequest& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    EXPECT_TRUE(message.SerializeToCodedStream(&out));
  }
  return bytes;
}

std::string ToString(const TensorBytes& tensor) {
  std::string bytes(tensor.size(), '\0');
  tensor.CopyTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

// What was read before must not be seen.
void FillWithOther(v1::ForwardRequest* message) {
  message->set_request_id(99);
  message->set_layer_index(98);
  message->add_segments()->set_fresh(true);
  message->mutable_segments(0)->set_position(97);
  message->add_token_ids(96);
  message->mutable_output()->set_kind(v1::OUTPUT_KIND_DELTA);
  message->mutable_token_region()->set_bytes(95);
  message->mutable_highway()->set_zeros(true);
}

// Both ways judge the message alike and see the same. The result: whether it was read as plain.
bool ReadsAlike(const std::vector<grpc::Slice>& slices, const ForwardRequestLimits& limits = {}) {
  const grpc::ByteBuffer buffer(slices.data(), slices.size());
  v1::ForwardRequest expected, message, plain;
  TensorBytes expected_tensor, tensor, plain_tensor;
  FillWithOther(&message);
  FillWithOther(&plain);
  const ForwardRequestParse judged = ParseAnyForwardRequest(buffer, limits, &expected, &expected_tensor);
  const bool is_plain = ReadPlainRequest(slices, limits, &plain, &plain_tensor);
  EXPECT_EQ(ParseForwardRequest(buffer, limits, &message, &tensor), is_plain ? ForwardRequestParse::kPlain : judged);
  EXPECT_TRUE(buffer.Valid());
  if (is_plain) {
    EXPECT_EQ(judged, ForwardRequestParse::kWhole);
    EXPECT_EQ(Deterministic(plain), Deterministic(expected));
    EXPECT_EQ(ToString(plain_tensor), ToString(expected_tensor));
  } else {
    EXPECT_EQ(plain_tensor.size(), 0u);
  }
  if (judged == ForwardRequestParse::kMalformed) return is_plain;
  EXPECT_EQ(Deterministic(message), Deterministic(expected));
  EXPECT_EQ(ToString(tensor), ToString(expected_tensor));
  EXPECT_EQ(tensor.pieces().size(), expected_tensor.pieces().size());
  return is_plain;
}

bool ReadsAlike(const std::string& bytes) { return ReadsAlike(CutAt(bytes, {})); }

TEST(ReadPlainRequest, PlainMessagesInOneSliceOrMany) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const std::string bytes = Join(PlainRequest(random));
    SCOPED_TRACE(testing::PrintToString(bytes));
    ASSERT_TRUE(ReadsAlike(bytes));
    for (size_t at = 0; at <= bytes.size(); ++at) ASSERT_TRUE(ReadsAlike(CutAt(bytes, {at}))) << at;
    for (int i = 0; i < 10; ++i) {
      std::vector<size_t> cuts(1 + random() % 6);
      for (size_t& cut : cuts) cut = random() % (bytes.size() + 1);
      std::sort(cuts.begin(), cuts.end());
      ASSERT_TRUE(ReadsAlike(CutAt(bytes, cuts)));
    }
    ASSERT_TRUE(ReadsAlike(CutAt(bytes, Everywhere(bytes))));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_TRUE(ReadsAlike(std::vector<grpc::Slice>()));
}

TEST(ReadPlainRequest, TruncatedAndFlippedMessages) {
  Random random(2);
  for (int round = 0; round < 25; ++round) {
    const std::string bytes = Join(PlainRequest(random));
    SCOPED_TRACE(testing::PrintToString(bytes));
    for (size_t at = 0; at < bytes.size(); ++at) {
      const std::string front = bytes.substr(0, at);
      ReadsAlike(front);
      ReadsAlike(CutAt(front, {at / 2}));
      std::string flipped = bytes, missing = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
      ReadsAlike(flipped);
      flipped[at] = static_cast<char>(random());
      ReadsAlike(flipped);
      ReadsAlike(CutAt(flipped, {at}));
      missing.erase(at, 1);
      ReadsAlike(missing);
      ASSERT_FALSE(HasFailure()) << at;
    }
  }
}

// Fields that only the generated class knows what to do with.
std::string Odd(Random& random) {
  const Fields odd = {VarintField(14, 1),
                      VarintField(16, 1),
                      VarintField(0, 1),
                      Tag(13, 5) + "abcd",
                      Tag(12, 3) + VarintField(1, 1) + Tag(12, 4),
                      Tag(12, 3),
                      Tag(12, 4),
                      BytesField(17, "abc"),
                      VarintField(3, 2),
                      VarintField(3, ~uint64_t{0}),
                      VarintField(4, uint64_t{1} << 32),
                      Tag(1, 0) + Varint(5, 1 + random() % 10),
                      Tag(2, 0) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                      Tag(2, 0) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
                      Tag(4, 0) + Varint(3, 1 + random() % 9),
                      std::string("\x88\x00\x01", 3),
                      Tag(kTokenIds, 0) + Varint(Number32(random)),
                      Tag(kTokenIds, 0) + Varint(Number(random)),
                      BytesField(kTokenIds, Varint(Number(random))),
                      BytesField(kTokenIds, Varint(Number32(random), random() % 7) + "\x01\x02\x03\x04"),
                      BytesField(kTokenIds, "\x80"),
                      BytesField(kTokenIds, "\x01\x02\x03\x04\xff\xff"),
                      Tag(kTokenIds, 2) + Varint(2, 1 + random() % 5) + "\x01\x02",
                      Fixed64Field(kReleaseAfter, random()),
                      BytesField(kReleaseAfter, RandomBytes(random, 1 + random() % 20)),
                      Tag(kSegments, 2) + Varint(0, 1 + random() % 5),
                      BytesField(kSegments, VarintField(3, 2)),
                      BytesField(kSegments, Tag(3, 0) + Varint(1, random() % 10)),
                      BytesField(kSegments, VarintField(2, Number(random))),
                      BytesField(kSegments, VarintField(4, 0) + VarintField(4, 1)),
                      BytesField(7, VarintField(1, random() % 4)),
                      BytesField(7, VarintField(2, ~random() % 5)),
                      BytesField(10, VarintField(1, 1)),
                      BytesField(kHighway, VarintField(1, 3)),
                      BytesField(kHighway, VarintField(2, 0) + BytesField(3, "")),
                      BytesField(kHighway, BytesField(15, "abc") + VarintField(1, 1)),
                      BytesField(kHighway, BytesField(15, "abc") + VarintField(2, 1)),
                      BytesField(kHighway, BytesField(15, "abc") + BytesField(15, "de")),
                      BytesField(kHighway, Tag(15, 2) + Varint(3, 1 + random() % 5) + "abc"),
                      BytesField(kHighway, Tag(15, 2) + Varint(4) + "abc"),
                      Tag(kHighway, 2) + Varint(6) + BytesField(15, "abc")};
  return odd[random() % odd.size()];
}

TEST(ReadPlainRequest, OtherMessagesAreLeftToTheGeneratedClass) {
  Random random(3);
  int plain = 0, other = 0;
  for (int round = 0; round < 8000; ++round) {
    Fields fields = PlainRequest(random);
    for (uint64_t i = random() % 3; i > 0 && !fields.empty(); --i) {
      const std::string again = fields[random() % fields.size()];
      fields.insert(fields.begin() + static_cast<ptrdiff_t>(random() % (fields.size() + 1)), again);
    }
    for (uint64_t i = random() % 3; i > 0; --i) {
      fields.insert(fields.begin() + static_cast<ptrdiff_t>(random() % (fields.size() + 1)), Odd(random));
    }
    if (Chance(random, 3)) std::shuffle(fields.begin(), fields.end(), random);
    const std::string bytes = Join(fields);
    const std::vector<size_t> cuts(random() % 2, random() % (bytes.size() + 1));
    (ReadsAlike(CutAt(bytes, cuts)) ? plain : other) += 1;
    ASSERT_FALSE(HasFailure()) << testing::PrintToString(bytes);
  }
  EXPECT_GT(plain, 500);
  EXPECT_GT(other, 4000);
}

TEST(ReadPlainRequest, FieldsInAnotherOrderMerge) {
  const std::string zeros = BytesField(kHighway, VarintField(2, 1));
  const std::string segment = BytesField(kSegments, VarintField(2, 1));
  EXPECT_TRUE(ReadsAlike(zeros + VarintField(8, 5) + segment + segment + VarintField(1, 7)));
  EXPECT_FALSE(ReadsAlike(segment + VarintField(8, 5) + segment)) << "apart from one another";
  EXPECT_FALSE(ReadsAlike(BytesField(kHighway, BytesField(15, "abc")) + segment)) << "before the end";
  EXPECT_FALSE(ReadsAlike(zeros + zeros));
  EXPECT_FALSE(ReadsAlike(BytesField(7, VarintField(1, 1)) + BytesField(7, VarintField(2, 1)))) << "both count";
}

TEST(ReadPlainRequest, OptionalFieldsThatAreZeroAreThere) {
  v1::ForwardRequest message;
  TensorBytes tensor;
  const std::string bytes = VarintField(4, 0) + BytesField(kSegments, VarintField(4, 0)) + BytesField(kSegments, "") +
                            BytesField(7, "") + BytesField(kHighway, VarintField(2, 0));
  ASSERT_TRUE(ReadPlainRequest(CutAt(bytes, {}), {}, &message, &tensor));
  EXPECT_TRUE(message.has_layer_index());
  EXPECT_TRUE(message.segments(0).has_position());
  EXPECT_FALSE(message.segments(1).has_position());
  EXPECT_TRUE(message.has_output());
  EXPECT_EQ(message.highway().source_case(), v1::Tensor::kZeros);
  EXPECT_FALSE(message.highway().zeros());
}

TEST(ReadPlainRequest, LimitsAreThoseOfAnyMessage) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    const Fields fields = PlainRequest(random);
    const std::string bytes = Join(fields);
    const std::vector<size_t> cuts(random() % 2, random() % (bytes.size() + 1));
    const std::vector<grpc::Slice> slices = CutAt(bytes, cuts);
    v1::ForwardRequest message;
    TensorBytes tensor;
    ASSERT_TRUE(ReadPlainRequest(slices, {}, &message, &tensor));
    const uint64_t rest = bytes.size() - tensor.size();
    for (uint64_t limit = rest < 20 ? 0 : rest - 20; limit <= rest + 2; ++limit) {
      EXPECT_EQ(ReadsAlike(slices, {.bytes = limit}), limit >= rest);
    }
    const auto segments = static_cast<uint64_t>(message.segments_size());
    for (uint64_t limit = segments < 3 ? 0 : segments - 3; limit <= segments + 1; ++limit) {
      EXPECT_EQ(ReadsAlike(slices, {.segments = limit}), limit >= segments);
    }
    ASSERT_FALSE(HasFailure()) << testing::PrintToString(bytes);
  }
}

TEST(ReadPlainRequest, TokenIdsOfAnySizeAndTensorsBehindThem) {
  Random random(5);
  for (const uint32_t shift : {0u, 3u, 4u, 5u, 11u, 12u, 18u, 19u, 25u, 26u, 31u}) {
    for (const uint64_t count : {1u, 2u, 3u, 4u, 5u, 1000u, 20000u}) {
      v1::ForwardRequest sent;
      for (uint64_t i = 0; i < count; ++i) sent.add_token_ids(static_cast<uint32_t>(random()) >> shift);
      const std::string ids = sent.SerializeAsString();
      sent.mutable_highway()->set_data(RandomBytes(random, 100'000));
      const std::string bytes = sent.SerializeAsString();
      EXPECT_TRUE(ReadsAlike(ids));
      EXPECT_TRUE(ReadsAlike(bytes));
      EXPECT_EQ(ReadsAlike(CutAt(bytes, {1, 1 + ids.size() / 2, ids.size() + 1})), ids.size() < 65'000)
          << "so much is copied together";
      for (int i = 0; i < 20; ++i) {
        std::string broken = ids;
        broken[random() % broken.size()] = static_cast<char>(random());
        ReadsAlike(broken);
      }
      ASSERT_FALSE(HasFailure()) << count << " of " << 32 - shift << " bits";
    }
  }
}

TEST(ReadPlainRequest, TheTensorStaysWhereItLies) {
  v1::ForwardRequest sent;
  sent.add_segments()->set_num_tokens(2);
  sent.mutable_highway()->set_data(std::string(5000, 'x'));
  const std::string bytes = sent.SerializeAsString();
  for (const size_t cut : {size_t{1}, size_t{2000}}) {
    const std::vector<grpc::Slice> slices = CutAt(bytes, {cut});
    v1::ForwardRequest message;
    TensorBytes tensor;
    ASSERT_TRUE(ReadPlainRequest(slices, {}, &message, &tensor));
    EXPECT_EQ(reinterpret_cast<const uint8_t*>(tensor.pieces().back().end()), slices[1].end());
    EXPECT_EQ(tensor.pieces().size(), cut == 1 ? 1u : 2u);
  }
}

}  // namespace
}  // namespace pleiad
