// Against the generated classes, whose judgement of any bytes is the reference.
#include "proto/wire/forward_message.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pleiad {
namespace {

using google::protobuf::util::MessageDifferencer;
using Random = std::mt19937;

uint32_t Below(Random& random, uint32_t limit) { return static_cast<uint32_t>(random() % limit); }

std::string RandomBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

grpc::ByteBuffer CutAt(const std::string& bytes, const std::vector<size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  size_t from = 0;
  for (const size_t to : cuts) {
    slices.emplace_back(bytes.data() + from, to - from);
    from = to;
  }
  slices.emplace_back(bytes.data() + from, bytes.size() - from);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer CutAnywhere(const std::string& bytes, Random& random) {
  std::vector<size_t> cuts;
  for (uint32_t i = Below(random, 8); i > 0; --i)
    cuts.push_back(Below(random, static_cast<uint32_t>(bytes.size() + 1)));
  std::sort(cuts.begin(), cuts.end());
  return CutAt(bytes, cuts);
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

v1::Tensor* TensorOf(v1::ForwardRequest& message) { return message.mutable_highway(); }
v1::Tensor* TensorOf(v1::ForwardResponse& message) { return message.mutable_output(); }
bool HasTensor(const v1::ForwardRequest& message) { return message.has_highway(); }
bool HasTensor(const v1::ForwardResponse& message) { return message.has_output(); }

std::string ToString(const TensorBytes& tensor) {
  std::string bytes(tensor.size(), '\0');
  tensor.CopyTo(reinterpret_cast<std::byte*>(bytes.data()));
  std::string pieces;
  for (const TensorBytes::Piece& piece : tensor.pieces()) {
    EXPECT_FALSE(piece.empty());
    pieces.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  EXPECT_EQ(bytes, pieces);
  return bytes;
}

// Both readers judge `bytes` alike and see the same message. True: it is one.
template <typename Message>
bool ReadsAsGenerated(const std::string& bytes, grpc::ByteBuffer buffer) {
  Message expected, message;
  TensorBytes tensor;
  const bool good = expected.ParseFromString(bytes);
  EXPECT_EQ(ParseForwardMessage(&buffer, &message, &tensor), good) << testing::PrintToString(bytes);
  EXPECT_FALSE(buffer.Valid());
  if (!good) return false;
  if (HasTensor(message) && TensorOf(message)->source_case() == v1::Tensor::kData) {
    EXPECT_TRUE(TensorOf(message)->data().empty());
    TensorOf(message)->set_data(ToString(tensor));
  } else {
    EXPECT_EQ(tensor.size(), 0u);
  }
  expected.DiscardUnknownFields();
  message.DiscardUnknownFields();
  EXPECT_TRUE(MessageDifferencer::Equals(message, expected)) << message.ShortDebugString() << "\nand not\n"
                                                             << expected.ShortDebugString();
  return true;
}

void FillTensor(Random& random, v1::Tensor* tensor) {
  tensor->set_dtype(static_cast<v1::DType>(Below(random, 4) - Below(random, 2)));
  switch (Below(random, 6)) {
    case 0:
      tensor->set_zeros(Below(random, 2) != 0);
      break;
    case 1:
      tensor->mutable_region()->set_offset(random());
      break;
    case 2:
      break;
    default:
      tensor->set_data(RandomBytes(random, Below(random, 300)));
  }
}

void Fill(Random& random, v1::ForwardRequest* message) {
  if (Below(random, 2) != 0) message->set_request_id(random());
  if (Below(random, 2) != 0) message->set_epoch(random() << Below(random, 30));
  if (Below(random, 2) != 0) message->set_mode(static_cast<v1::Mode>(Below(random, 3)));
  if (Below(random, 2) != 0) message->set_layer_index(Below(random, 3));
  for (uint32_t i = Below(random, 4); i > 0; --i) {
    v1::Segment* segment = message->add_segments();
    segment->set_sequence_id(random());
    segment->set_num_tokens(Below(random, 300));
    if (Below(random, 2) != 0) segment->set_position(random());
  }
  for (uint32_t i = Below(random, 20); i > 0; --i) message->add_token_ids(random() >> Below(random, 32));
  if (Below(random, 3) == 0) message->mutable_output()->mutable_region()->set_bytes(random());
  if (Below(random, 3) == 0) message->add_release_after(random());
  if (Below(random, 4) != 0) FillTensor(random, message->mutable_highway());
}

void Fill(Random& random, v1::ForwardResponse* message) {
  if (Below(random, 2) != 0) message->set_request_id(random());
  if (Below(random, 2) != 0) message->mutable_status()->set_message("caf\u00e9");
  for (uint32_t i = Below(random, 4); i > 0; --i) message->add_segments()->set_position(random());
  if (Below(random, 2) != 0) message->mutable_stats()->set_rows(random());
  if (Below(random, 2) != 0) message->set_draining(true);
  if (Below(random, 4) != 0) FillTensor(random, message->mutable_output());
}

void AppendVarint(Random& random, uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
  // Longer than need be, now and then.
  for (uint32_t i = Below(random, 12) == 0 ? Below(random, 5) : 0; i > 0; --i) {
    out->back() = static_cast<char>(out->back() | 0x80);
    out->push_back('\0');
  }
}

// Fields of any number, of any wire type, mostly well formed.
std::string RandomFields(Random& random, int depth) {
  std::string out;
  for (uint32_t i = Below(random, 5); i > 0; --i) {
    const uint32_t number =
        Below(random, 3) == 0 ? Below(random, 40) : (Below(random, 2) == 0 ? 15 : 1 + Below(random, 3));
    const uint32_t type = Below(random, 2) == 0 ? 2 : Below(random, 40) == 0 ? Below(random, 8) : Below(random, 6);
    if (type == 4 && Below(random, 8) != 0) continue;
    AppendVarint(random, number << 3 | type, &out);
    switch (type) {
      case 0:
        AppendVarint(random, random() >> Below(random, 32), &out);
        break;
      case 1:
        out += RandomBytes(random, 8);
        break;
      case 2: {
        const std::string inner = depth == 0 ? RandomBytes(random, Below(random, 6)) : RandomFields(random, depth - 1);
        AppendVarint(random, inner.size() + (Below(random, 60) == 0 ? 1 : 0), &out);
        out += inner;
        break;
      }
      case 3:
        out += RandomFields(random, 1);
        AppendVarint(random, (Below(random, 20) == 0 ? number + 1 : number) << 3 | 4, &out);
        break;
      case 5:
        out += RandomBytes(random, 4);
        break;
      default:
        break;
    }
  }
  return out;
}

template <typename Message>
void CheckRandomMessages(uint32_t seed) {
  Random random(seed);
  for (int i = 0; i < 3000; ++i) {
    Message message;
    Fill(random, &message);
    // Repeated and reordered fields: messages behind one another are one message.
    std::string bytes;
    for (uint32_t j = Below(random, 3) == 0 ? 2 + Below(random, 2) : 1; j > 0; --j) {
      bytes = message.SerializeAsString() + bytes;
      message.Clear();
      Fill(random, &message);
    }
    ASSERT_TRUE(ReadsAsGenerated<Message>(bytes, CutAnywhere(bytes, random))) << testing::PrintToString(bytes);
  }
}

TEST(ParseForwardMessage, ReadsRandomMessagesAsTheGeneratedClassesDo) {
  CheckRandomMessages<v1::ForwardRequest>(1);
  CheckRandomMessages<v1::ForwardResponse>(2);
}

TEST(ParseForwardMessage, JudgesRandomFieldsAndBrokenBytesAsTheGeneratedClassesDo) {
  google::protobuf::LogSilencer quiet;  // strings that are no UTF-8
  Random random(3);
  int good = 0, bad = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string bytes = RandomFields(random, 3);
    if (Below(random, 4) == 0) {
      v1::ForwardRequest message;
      Fill(random, &message);
      bytes += message.SerializeAsString();
    }
    if (!bytes.empty() && Below(random, 4) == 0) {
      bytes[Below(random, static_cast<uint32_t>(bytes.size()))] = static_cast<char>(random());
    }
    (ReadsAsGenerated<v1::ForwardRequest>(bytes, CutAnywhere(bytes, random)) ? good : bad) += 1;
    ReadsAsGenerated<v1::ForwardResponse>(bytes, CutAnywhere(bytes, random));
    ASSERT_FALSE(HasFailure()) << testing::PrintToString(bytes);
  }
  EXPECT_GT(good, 10000);
  EXPECT_GT(bad, 10000);
}

v1::ForwardRequest TinyRequest() {
  v1::ForwardRequest message;
  message.set_request_id(300);
  message.add_segments()->set_num_tokens(2);
  message.add_token_ids(1);
  message.add_token_ids(200);
  message.mutable_highway()->set_dtype(v1::DTYPE_F32);
  message.mutable_highway()->set_data("0123456789abcdef0123456789abcdef");
  return message;
}

TEST(ParseForwardMessage, AnyTwoCutsAndAnyTruncation) {
  const std::string whole = TinyRequest().SerializeAsString();
  for (size_t a = 0; a <= whole.size(); ++a) {
    for (size_t b = a; b <= whole.size(); ++b) {
      ASSERT_TRUE(ReadsAsGenerated<v1::ForwardRequest>(whole, CutAt(whole, {a, b}))) << a << " " << b;
    }
  }
  std::vector<size_t> everywhere;
  for (size_t at = 0; at <= whole.size(); ++at) everywhere.push_back(at);
  EXPECT_TRUE(ReadsAsGenerated<v1::ForwardRequest>(whole, CutAt(whole, everywhere)));
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string part = whole.substr(0, size);
    ReadsAsGenerated<v1::ForwardRequest>(part, CutAt(part, {size / 2}));
    ASSERT_FALSE(HasFailure()) << size;
  }
}

TEST(ParseForwardMessage, DeepGroupsAreRefusedAsTheGeneratedClassesDo) {
  for (const int depth : {50, 99, 100, 101, 5000}) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) bytes += "\x83\x01";  // field 16
    for (int i = 0; i < depth; ++i) bytes += "\x84\x01";
    EXPECT_EQ(ReadsAsGenerated<v1::ForwardRequest>(bytes, CutAt(bytes, {3})), depth <= 100) << depth;
  }
}

TEST(ParseForwardMessage, TheTensorStaysWhereItLies) {
  v1::ForwardRequest message = TinyRequest();
  message.mutable_highway()->set_data(std::string(5000, 'x'));
  const std::string bytes = message.SerializeAsString();
  const std::vector<grpc::Slice> slices = {grpc::Slice(bytes.data(), 2000),
                                           grpc::Slice(bytes.data() + 2000, bytes.size() - 2000)};
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  TensorBytes parsed;
  ASSERT_TRUE(ParseForwardMessage(&buffer, &message, &parsed));
  const TensorBytes tensor = std::move(parsed);
  ASSERT_EQ(tensor.pieces().size(), 2u);
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(tensor.pieces()[0].end()), slices[0].end());
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(tensor.pieces()[1].begin()), slices[1].begin());
}

TEST(ParseForwardMessage, ATensorOutlivesTheMessagesBuffer) {
  TensorBytes tensor;
  {
    const std::string bytes = TinyRequest().SerializeAsString();
    grpc::ByteBuffer buffer = CutAt(bytes, {bytes.size() - 5, bytes.size() - 3});
    v1::ForwardRequest message;
    ASSERT_TRUE(ParseForwardMessage(&buffer, &message, &tensor));
  }
  EXPECT_EQ(ToString(tensor), TinyRequest().highway().data());
}

TEST(ParseForwardMessage, ATensorInManySmallPiecesIsPutTogether) {
  v1::ForwardRequest sent;
  Random random(7);
  sent.mutable_highway()->set_data(RandomBytes(random, 100000));
  const std::string bytes = sent.SerializeAsString();
  for (const size_t step : {1, 500, 1000}) {
    std::vector<size_t> cuts;
    for (size_t at = step; at < bytes.size(); at += step) cuts.push_back(at);
    grpc::ByteBuffer buffer = CutAt(bytes, cuts);
    v1::ForwardRequest message;
    TensorBytes tensor;
    ASSERT_TRUE(ParseForwardMessage(&buffer, &message, &tensor));
    EXPECT_EQ(ToString(tensor), sent.highway().data());
    EXPECT_EQ(tensor.pieces().size() == 1, step <= 500) << tensor.pieces().size();
  }
}

TEST(ParseForwardRequest, CountsAllButTheTensorsDataAndKeepsTheIdBeyondTheLimit) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    v1::ForwardRequest sent;
    Fill(random, &sent);
    sent.set_request_id(77);
    sent.mutable_highway()->set_data(RandomBytes(random, 1000 + Below(random, 1000)));
    const std::string bytes = sent.SerializeAsString();
    // Two tags and two lengths, which take two bytes each, belong to the tensor.
    const uint64_t rest = bytes.size() - sent.highway().data().size();
    for (uint64_t limit = 0; limit <= rest + 2; ++limit) {
      const grpc::ByteBuffer buffer = CutAnywhere(bytes, random);
      v1::ForwardRequest message;
      TensorBytes tensor;
      const ForwardRequestParse parse = ParseForwardRequest(buffer, {.bytes = limit}, &message, &tensor);
      ASSERT_EQ(parse == ForwardRequestParse::kTooLarge, limit < rest) << limit;
      ASSERT_NE(parse, ForwardRequestParse::kMalformed);
      EXPECT_EQ(message.request_id(), 77u);
      EXPECT_EQ(tensor.size(), limit < rest ? 0u : sent.highway().data().size());
    }
    const auto segments = static_cast<uint64_t>(sent.segments_size());
    for (uint64_t limit = 0; limit <= segments; ++limit) {
      const grpc::ByteBuffer buffer = CutAnywhere(bytes, random);
      v1::ForwardRequest message;
      TensorBytes tensor;
      const ForwardRequestParse parse = ParseForwardRequest(buffer, {.segments = limit}, &message, &tensor);
      ASSERT_EQ(parse == ForwardRequestParse::kTooLarge, limit < segments);
      ASSERT_NE(parse, ForwardRequestParse::kMalformed);
      EXPECT_EQ(static_cast<uint64_t>(message.segments_size()), limit);
    }
  }
}

TEST(ParseForwardMessage, KeepsNoSliceWithoutTensorBytes) {
  const auto owner = std::make_shared<std::string>(TinyRequest().SerializeAsString());
  const auto slice = [&owner](size_t from, size_t bytes) {
    return ReferenceSlice({reinterpret_cast<const std::byte*>(owner->data()) + from, bytes}, owner);
  };
  TensorBytes tensor;
  {
    const std::vector<grpc::Slice> slices = {slice(0, 3), slice(3, owner->size() - 3)};
    grpc::ByteBuffer buffer(slices.data(), slices.size());
    v1::ForwardRequest message;
    ASSERT_TRUE(ParseForwardMessage(&buffer, &message, &tensor));
  }
  EXPECT_EQ(owner.use_count(), 2) << "the one with the tensor";
  tensor = TensorBytes();
  EXPECT_EQ(owner.use_count(), 1);
}

template <typename Message>
void CheckSerialize(uint32_t seed) {
  Random random(seed);
  for (int i = 0; i < 2000; ++i) {
    Message message;
    Fill(random, &message);
    EXPECT_EQ(ToString(SerializeForwardMessage(message)), message.SerializeAsString());
    if (!HasTensor(message) || TensorOf(message)->source_case() != v1::Tensor::kData) continue;
    const std::string expected = message.SerializeAsString();
    const v1::Tensor tensor = *TensorOf(message);
    std::vector<grpc::Slice> data;
    ASSERT_TRUE(CutAnywhere(tensor.data(), random).Dump(&data).ok());
    const auto* field = message.GetDescriptor()->FindFieldByNumber(15);
    message.GetReflection()->ClearField(&message, field);
    ASSERT_EQ(ToString(SerializeForwardMessage(message, tensor.dtype(), data)), expected);
  }
}

TEST(SerializeForwardMessage, WritesTheBytesOfTheGeneratedClasses) {
  CheckSerialize<v1::ForwardRequest>(4);
  CheckSerialize<v1::ForwardResponse>(5);
}

TEST(SerializeForwardMessage, RefersToTheTensorAndLetsItGo) {
  const auto owner = std::make_shared<std::string>(1 << 16, 'x');
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()), owner->size());
  {
    const grpc::Slice data = ReferenceSlice(bytes, owner);
    const grpc::ByteBuffer buffer = SerializeForwardMessage(v1::ForwardResponse(), v1::DTYPE_F32, {&data, 1});
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    EXPECT_EQ(slices.back().begin(), reinterpret_cast<const uint8_t*>(owner->data()));
    EXPECT_EQ(owner.use_count(), 2);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace pleiad
