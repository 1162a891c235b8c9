#include "proto/wire/bounded_message.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pleiad/v1/ple.pb.h"

namespace pleiad {
namespace {

// In slices of `cut` bytes.
grpc::ByteBuffer Buffer(const std::string& bytes, size_t cut = 7) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += cut) slices.emplace_back(bytes.substr(at, cut));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

BoundedParse Parse(const std::string& bytes, const MessageLimits& limits, google::protobuf::Message* message) {
  return ParseBounded(Buffer(bytes), limits, message);
}

std::string Repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

v1::LookupRequest Lookup() {
  v1::LookupRequest request;
  request.set_layer_index(3);
  for (uint32_t i = 0; i < 5; ++i) {
    v1::LookupSegment* segment = request.add_segments();
    segment->set_num_tokens(i);
    segment->add_context_ids(300 + i);
    request.add_token_ids(i);
  }
  request.set_want_embeddings(true);
  return request;
}

TEST(BoundedMessageTest, WhatIsWithinTheLimitsIsReadAsProtobufReadsIt) {
  const std::string bytes = Lookup().SerializeAsString();
  v1::LookupRequest read;
  ASSERT_EQ(Parse(bytes, {.bytes = bytes.size(), .parts = 5}, &read), BoundedParse::kWhole);
  EXPECT_EQ(read.SerializeAsString(), bytes);
}

TEST(BoundedMessageTest, OneByteOrOnePartMoreIsTooLarge) {
  const std::string bytes = Lookup().SerializeAsString();
  v1::LookupRequest read;
  EXPECT_EQ(Parse(bytes, {.bytes = bytes.size() - 1, .parts = 5}, &read), BoundedParse::kTooLarge);
  EXPECT_EQ(Parse(bytes, {.bytes = bytes.size(), .parts = 4}, &read), BoundedParse::kTooLarge);
  EXPECT_EQ(read.ByteSizeLong(), 0u);
}

// Each of these takes many times its bytes once it is parsed.
TEST(BoundedMessageTest, EveryKindOfPartCounts) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"an empty submessage", std::string("\x12\x00", 2)},
      {"an unknown number", std::string("\xf8\x07\x00", 3)},
      {"an unknown empty string", std::string("\xfa\x07\x00", 3)},
      {"an unknown group", std::string("\xfb\x07\xfc\x07", 4)},
      {"a known field of another wire type", std::string("\x0a\x00", 2)},
  };
  v1::LookupRequest probe;
  ASSERT_EQ(v1::LookupRequest::kLayerIndexFieldNumber, 1);
  ASSERT_EQ(v1::LookupRequest::kSegmentsFieldNumber, 2);
  for (const auto& [kind, bytes] : kinds) {
    v1::LookupRequest read;
    EXPECT_EQ(Parse(Repeat(bytes, 10), {.bytes = 100, .parts = 10}, &read), BoundedParse::kWhole) << kind;
    EXPECT_EQ(Parse(Repeat(bytes, 11), {.bytes = 100, .parts = 10}, &read), BoundedParse::kTooLarge) << kind;
  }
  // Those inside of others too: in a submessage, and in a group.
  for (const std::string& outer : {std::string("\x12\x1e", 2), std::string("\xfb\x07", 2)}) {
    std::string bytes = outer + Repeat(std::string("\xf8\x07\x00", 3), 10);
    if (outer[0] != '\x12') bytes += "\xfc\x07";
    v1::LookupRequest read;
    EXPECT_EQ(Parse(bytes, {.bytes = 100, .parts = 11}, &read), BoundedParse::kWhole);
    EXPECT_EQ(Parse(bytes, {.bytes = 100, .parts = 10}, &read), BoundedParse::kTooLarge);
  }
}

TEST(BoundedMessageTest, ValuesOfAFieldAreNoParts) {
  v1::LookupRequest request;
  for (uint32_t i = 0; i < 1000; ++i) request.add_token_ids(i);
  const std::string packed = request.SerializeAsString();
  v1::LookupRequest read;
  EXPECT_EQ(Parse(packed, {.bytes = packed.size(), .parts = 0}, &read), BoundedParse::kWhole);
  EXPECT_EQ(read.token_ids_size(), 1000);
  const auto tag = static_cast<char>(v1::LookupRequest::kTokenIdsFieldNumber << 3);
  read.Clear();
  EXPECT_EQ(Parse(Repeat({tag, '\x05'}, 100), {.bytes = 200, .parts = 0}, &read), BoundedParse::kWhole);
  EXPECT_EQ(read.token_ids_size(), 100);
}

// Wherever it is cut, and however deep it is, what protobuf refuses is refused, and what it takes is taken.
TEST(BoundedMessageTest, AgreesWithProtobufOnWhatIsMalformed) {
  std::vector<std::string> messages;
  const std::string whole = Lookup().SerializeAsString();
  for (size_t size = 0; size <= whole.size(); ++size) messages.push_back(whole.substr(0, size));
  for (size_t depth : {1, 50, 99, 100, 101, 200}) {
    messages.push_back(Repeat("\xfb\x07", depth) + Repeat("\xfc\x07", depth));
    messages.push_back(Repeat("\xfb\x07", depth));
  }
  for (const char* bytes : {"\xfc\x07", "\x12\x03\x08\x01", "\x12\xff\xff\xff\xff\xff\x01", "\x0f", "\x07"}) {
    messages.emplace_back(bytes);
  }
  messages.emplace_back("\x00\x01", 2);
  messages.emplace_back("\x12\x02\x00\x01", 4);
  for (const std::string& bytes : messages) {
    v1::LookupRequest expected, read;
    const bool good = expected.ParseFromString(bytes);
    const BoundedParse parse = Parse(bytes, {.bytes = 1000, .parts = 1000}, &read);
    EXPECT_EQ(parse, good ? BoundedParse::kWhole : BoundedParse::kMalformed) << bytes.size();
    if (good) {
      EXPECT_EQ(read.SerializeAsString(), expected.SerializeAsString());
    }
  }
}

}  // namespace
}  // namespace pleiad
