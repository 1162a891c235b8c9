// The plan as the GPU reads it, without a GPU: items cover every token once and come after those they wait for.
#include "core/device/cuda/plan_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace pleiad::cuda {
namespace {

constexpr uint32_t kCarries = 40;
constexpr uint32_t kStagingRows = 64;

PlanShape Shape(uint32_t dilation, uint32_t concurrent_items) {
  PlanShape shape;
  shape.geometry.hidden_size = 24;
  shape.geometry.embed_dim = 64;
  shape.geometry.ngram_size = dilation;
  shape.geometry.heads_per_ngram = 2;
  shape.rollback_tokens = 8;
  shape.staging_rows = kStagingRows;
  shape.carries = kCarries;
  shape.concurrent_items = concurrent_items;
  return shape;
}

// A random plan of whole segments a part, and where its tensors would be.
struct RandomPlan {
  BatchPlan plan;
  std::vector<PartAddress> addresses;
};

RandomPlan MakePlan(const PlanShape& shape, std::mt19937& random) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  RandomPlan made;
  BatchPlan& plan = made.plan;
  uint32_t carry = 0;
  const uint32_t parts = 1 + below(4);
  for (uint32_t p = 0; p < parts; ++p) {
    TensorPart part;
    part.first_token = plan.num_tokens;
    part.input_dtype = below(2) == 0 ? DType::kF32 : DType::kBf16;
    part.output_dtype = below(2) == 0 ? DType::kF32 : DType::kBf16;
    part.kind = below(2) == 0 ? OutputKind::kHighway : OutputKind::kDelta;
    const uint32_t segments = 1 + below(6);
    for (uint32_t s = 0; s < segments; ++s) {
      SegmentPlan segment;
      if (below(5) != 0) segment.carry = CarrySlot(carry++);
      segment.first_token = plan.num_tokens;
      segment.num_tokens = below(4) == 0 ? below(300) : below(12);
      segment.ring = {below(shape.geometry.state_len() + shape.rollback_tokens), below(18)};
      segment.ring_to_undo = segment.num_tokens > shape.rollback_tokens;
      segment.undo_to_ring = below(4) == 0;
      plan.num_tokens += segment.num_tokens;
      plan.segments.push_back(segment);
    }
    part.num_tokens = plan.num_tokens - part.first_token;
    plan.parts.push_back(part);
    made.addresses.push_back({below(4) == 0 ? 0 : (p + 1) * 0x10000000ull, (p + 1) * 0x10000000ull + 0x8000000,
                              part.input_dtype != part.output_dtype && below(2) == 0});
  }
  for (uint32_t i = 0; i < plan.num_tokens * shape.geometry.heads(); ++i) {
    plan.gather.push_back(below(9) == 0 ? GatherIndex::OfStaging(below(kStagingRows))
                                        : GatherIndex::OfSlot(Slot(below(1000))));
  }
  const uint32_t fills = below(kStagingRows);
  for (uint32_t i = 0; i < fills; ++i) plan.fills.push_back({i, Slot(below(1000))});
  return made;
}

template <typename T>
T At(const std::vector<std::byte>& image, uint64_t offset, size_t index) {
  T value;
  std::memcpy(&value, image.data() + offset + index * sizeof(T), sizeof(T));
  return value;
}

class PlanImageTest : public testing::TestWithParam<std::pair<uint32_t, uint32_t>> {
 protected:
  void SetUp() override {
    made_ = MakePlan(shape_, random_);
    layout_ = PlanImageLayout(shape_, std::max(1u, made_.plan.num_tokens));
    image_.assign(layout_.bytes, std::byte{0xEE});
    counts_ = WritePlanImage(shape_, layout_, made_.plan, made_.addresses, 77, image_.data());
  }
  ChainItem Item(size_t i) const { return At<ChainItem>(image_, layout_.items, i); }

  const PlanShape shape_ = Shape(GetParam().first, 1 + GetParam().second * 7 % 90);
  std::mt19937 random_{GetParam().second};
  RandomPlan made_;
  PlanImageLayout layout_{shape_, 1};
  std::vector<std::byte> image_;
  PlanImageCounts counts_;
};

TEST_P(PlanImageTest, ItemsCoverEveryTokenOnceAndFollowThoseTheyWaitFor) {
  const uint32_t dilation = shape_.geometry.dilation();
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> item_of;  // by segment's first token and token of the segment
  for (uint32_t i = 0; i < counts_.items; ++i) {
    const ChainItem item = Item(i);
    ASSERT_GT(item.count, 0u);
    for (uint32_t k = 0; k < item.count; ++k) {
      const uint32_t local = item.local + k * dilation;
      ASSERT_LT(local, item.num_tokens);
      ASSERT_TRUE(item_of.emplace(std::pair(item.first_token, local), i).second) << "token twice";
    }
    if (item.local >= dilation) {
      const auto before = item_of.find({item.first_token, item.local - dilation});
      ASSERT_NE(before, item_of.end()) << "the item it waits for comes later";
    }
  }
  EXPECT_EQ(item_of.size(), made_.plan.num_tokens);
  EXPECT_LE(counts_.items, made_.plan.num_tokens);
}

TEST_P(PlanImageTest, ABatchOfNoMoreTokensThanRunAtOnceBecomesItemsOfOne) {
  const uint32_t tokens = made_.plan.num_tokens;
  PlanShape shape = shape_;
  uint32_t least = 1;  // number of items at once from which on all items have one token
  for (shape.concurrent_items = tokens + 3; shape.concurrent_items > 0; --shape.concurrent_items) {
    const PlanImageCounts counts = WritePlanImage(shape, layout_, made_.plan, made_.addresses, 77, image_.data());
    if (counts.items != tokens) {
      least = shape.concurrent_items + 1;
      break;
    }
  }
  for (shape.concurrent_items = 1; shape.concurrent_items <= tokens + 3; ++shape.concurrent_items) {
    EXPECT_EQ(HasItemsOfOne(shape, tokens), shape.concurrent_items >= tokens);
    if (HasItemsOfOne(shape, tokens)) {
      EXPECT_GE(shape.concurrent_items, least);
    }
  }
}

TEST_P(PlanImageTest, ItemsSayWhatTheirSegmentAndPartSay) {
  for (uint32_t i = 0; i < counts_.items; ++i) {
    const ChainItem item = Item(i);
    size_t s = 0;
    while (made_.plan.segments[s].first_token != item.first_token || made_.plan.segments[s].num_tokens == 0) ++s;
    const SegmentPlan& segment = made_.plan.segments[s];
    size_t p = 0;
    while (segment.first_token >= made_.plan.parts[p].first_token + made_.plan.parts[p].num_tokens) ++p;
    const TensorPart& part = made_.plan.parts[p];
    const PartAddress& address = made_.addresses[p];
    const uint64_t row = segment.first_token - part.first_token;
    const uint64_t channels = shape_.geometry.channels();
    const uint64_t input_row = channels * (address.spread ? 4 : ByteSize(part.input_dtype));
    const uint64_t output_row = channels * (address.spread ? 4 : ByteSize(part.output_dtype));
    EXPECT_EQ(item.input, address.input == 0 ? 0 : address.input + row * input_row);
    EXPECT_EQ(item.output, address.output + row * output_row);
    EXPECT_EQ(item.num_tokens, segment.num_tokens);
    EXPECT_EQ(item.cursor, segment.ring.cursor);
    EXPECT_EQ(item.valid, std::min(segment.ring.valid, shape_.geometry.state_len()));
    EXPECT_EQ((item.flags & kInputBf16) != 0, part.input_dtype == DType::kBf16);
    EXPECT_EQ((item.flags & kOutputBf16) != 0, part.output_dtype == DType::kBf16);
    EXPECT_EQ((item.flags & kAddHighway) != 0, part.kind == OutputKind::kHighway);
    EXPECT_EQ((item.flags & kSpread) != 0, address.spread);
    EXPECT_EQ((item.flags & kFromUndo) != 0, segment.num_tokens > shape_.rollback_tokens);
    EXPECT_EQ((item.flags & kHasCarry) != 0, segment.carry != kNoCarry);
    if (segment.carry != kNoCarry) {
      EXPECT_EQ(item.carry, segment.carry.value());
    }
  }
}

TEST_P(PlanImageTest, RowsToGatherFillAndUploadAreThePlans) {
  const auto header = At<PlanHeader>(image_, 0, 0);
  EXPECT_EQ(header.num_items, counts_.items);
  EXPECT_EQ(header.num_rows, made_.plan.gather.size());
  EXPECT_EQ(header.num_moves, counts_.moves);
  EXPECT_EQ(header.stamp, 77u);
  std::vector<uint32_t> bypassed;
  for (size_t i = 0; i < made_.plan.gather.size(); ++i) {
    EXPECT_EQ(At<uint32_t>(image_, layout_.gather, i), made_.plan.gather[i].bits());
    if (made_.plan.gather[i].in_staging()) bypassed.push_back(made_.plan.gather[i].row());
  }
  ASSERT_EQ(counts_.fills, made_.plan.fills.size());
  ASSERT_EQ(counts_.uploads, counts_.fills + bypassed.size());
  for (uint32_t i = 0; i < counts_.uploads; ++i) {
    const auto pair = At<RowPair>(image_, layout_.pairs, i);
    if (i < counts_.fills) {
      EXPECT_EQ(pair.staging_row, made_.plan.fills[i].staging_row);
      EXPECT_EQ(pair.slot, made_.plan.fills[i].slot.value());
    } else {
      EXPECT_EQ(pair.staging_row, bypassed[i - counts_.fills]);
    }
  }
  EXPECT_LE(counts_.bytes, layout_.bytes);
}

TEST_P(PlanImageTest, TokensInThePlaceOfAGatherAreThePlans) {
  BatchPlan plan = made_.plan;
  plan.gather.clear();
  plan.fills.clear();
  std::vector<uint32_t> ids(plan.num_tokens + shape_.geometry.context_len());
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random_());
  for (const SegmentPlan& segment : plan.segments) {
    if (segment.num_tokens == 0) continue;
    const auto from = absl::MakeConstSpan(ids).subspan(segment.first_token);
    plan.hashed.push_back(
        {from.first(shape_.geometry.context_len()), from.subspan(shape_.geometry.context_len(), segment.num_tokens)});
  }
  const PlanImageLayout layout(shape_, std::max(1u, plan.num_tokens), PlanRows::kTokens);
  std::vector<std::byte> image(layout.bytes, std::byte{0xEE});
  const PlanImageCounts counts = WritePlanImage(shape_, layout, plan, made_.addresses, 77, image.data());
  EXPECT_EQ(At<PlanHeader>(image, 0, 0).num_rows, plan.num_tokens * shape_.geometry.heads());
  EXPECT_EQ(counts.uploads, 0u);
  EXPECT_EQ(counts.items, counts_.items);
  EXPECT_EQ(counts.moves, counts_.moves);
  EXPECT_EQ(std::memcmp(image.data() + layout.items, image_.data() + layout_.items, counts.items * sizeof(ChainItem)),
            0);
  EXPECT_EQ(std::memcmp(image.data() + layout.moves, image_.data() + layout_.moves, counts.moves * sizeof(UndoMove)),
            0);
  uint32_t token = 0;
  for (const HashedTokens& hashed : plan.hashed) {
    for (size_t i = 0; i < hashed.tokens.size(); ++i, ++token) {
      const auto place = At<uint32_t>(image, layout.hash_places, token);
      ASSERT_GE(place, hashed.history.size());
      EXPECT_EQ(At<uint32_t>(image, layout.hash_ids, place), hashed.tokens[i]);
      for (size_t back = 1; back <= hashed.history.size(); ++back) {
        const uint32_t before = back <= i ? hashed.tokens[i - back] : hashed.history[hashed.history.size() + i - back];
        EXPECT_EQ(At<uint32_t>(image, layout.hash_ids, place - back), before);
      }
    }
  }
  EXPECT_EQ(token, plan.num_tokens);
  EXPECT_GE(counts.bytes, layout.moves);
  EXPECT_LE(counts.bytes, layout.bytes);
}

TEST_P(PlanImageTest, UndoRowsMoveOneWayPerSegment) {
  std::vector<UndoMove> expected;
  for (const SegmentPlan& segment : made_.plan.segments) {
    const uint32_t rows = std::min(segment.ring.valid, shape_.geometry.state_len());
    if (segment.carry == kNoCarry || rows == 0) continue;
    if (segment.undo_to_ring) {
      expected.push_back({segment.carry.value(), segment.ring.cursor, rows, 1});
    } else if (segment.ring_to_undo) {
      expected.push_back({segment.carry.value(), segment.ring.cursor, rows, 0});
    }
  }
  ASSERT_EQ(counts_.moves, expected.size());
  for (uint32_t i = 0; i < counts_.moves; ++i) {
    const auto move = At<UndoMove>(image_, layout_.moves, i);
    EXPECT_EQ(std::memcmp(&move, &expected[i], sizeof(move)), 0) << i;
  }
}

std::vector<std::pair<uint32_t, uint32_t>> Cases() {
  std::vector<std::pair<uint32_t, uint32_t>> cases;
  for (uint32_t dilation : {2u, 3u, 4u}) {
    for (uint32_t seed = 0; seed < 6; ++seed) cases.emplace_back(dilation, seed);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Plans, PlanImageTest, testing::ValuesIn(Cases()));

}  // namespace
}  // namespace pleiad::cuda
