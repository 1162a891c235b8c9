#include "core/device/cuda/plan_image.h"

#include <algorithm>
#include <cstring>

namespace pleiad::cuda {
namespace {

uint64_t Align(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

uint32_t CeilDivide(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Items that chains of at most `length` tokens make: each of a segment's D residues is a chain.
uint32_t CountItems(const BatchPlan& plan, uint32_t dilation, uint32_t length) {
  uint32_t items = 0;
  for (const SegmentPlan& segment : plan.segments) {
    const uint32_t whole = segment.num_tokens / dilation;
    const uint32_t longer = segment.num_tokens % dilation;  // chains with one token more
    items += longer * CeilDivide(whole + 1, length) + (dilation - longer) * CeilDivide(whole, length);
  }
  return items;
}

// The shortest items that all run at once; where segments are too many for that, items of their even share.
uint32_t ItemLength(const PlanShape& shape, const BatchPlan& plan) {
  const uint32_t share = std::max(1u, CeilDivide(plan.num_tokens, shape.concurrent_items));
  const uint32_t dilation = shape.geometry.dilation();
  for (uint32_t length = share; length <= share + share / 4 + 1; ++length) {
    if (CountItems(plan, dilation, length) <= shape.concurrent_items) return length;
  }
  return share;
}

uint32_t Flags(const PlanShape& shape, const SegmentPlan& segment, const TensorPart& part, bool spread) {
  uint32_t flags = 0;
  if (part.input_dtype == DType::kBf16) flags |= kInputBf16;
  if (part.output_dtype == DType::kBf16) flags |= kOutputBf16;
  if (part.kind == OutputKind::kHighway) flags |= kAddHighway;
  if (spread) flags |= kSpread;
  if (segment.num_tokens > shape.rollback_tokens) flags |= kFromUndo;
  if (segment.carry != kNoCarry && shape.geometry.state_len() > 0) flags |= kHasCarry;
  return flags;
}

// Bytes from one token's row to the next.
uint64_t RowBytes(const PlanShape& shape, DType dtype, bool spread) {
  return uint64_t{shape.geometry.channels()} * (spread ? sizeof(float) : ByteSize(dtype));
}

class Items {
 public:
  Items(const PlanShape& shape, const BatchPlan& plan, absl::Span<const PartAddress> parts, ChainItem* to)
      : shape_(shape), plan_(plan), parts_(parts), to_(to), length_(ItemLength(shape, plan)) {}

  uint32_t Write() {
    size_t part = 0;
    for (const SegmentPlan& segment : plan_.segments) {
      if (segment.num_tokens == 0) continue;
      while (segment.first_token >= plan_.parts[part].first_token + plan_.parts[part].num_tokens) ++part;
      WriteSegment(segment, plan_.parts[part], parts_[part]);
    }
    return count_;
  }

 private:
  void WriteSegment(const SegmentPlan& segment, const TensorPart& part, const PartAddress& address) {
    const uint32_t dilation = shape_.geometry.dilation();
    const uint64_t row = segment.first_token - part.first_token;
    ChainItem item;
    if (address.input != 0) item.input = address.input + row * RowBytes(shape_, part.input_dtype, address.spread);
    item.output = address.output + row * RowBytes(shape_, part.output_dtype, address.spread);
    item.first_token = segment.first_token;
    item.num_tokens = segment.num_tokens;
    item.carry = segment.carry == kNoCarry ? 0 : segment.carry.value();
    item.cursor = segment.ring.cursor;
    item.valid = std::min(segment.ring.valid, shape_.geometry.state_len());
    item.flags = Flags(shape_, segment, part, address.spread);
    // Chunk by chunk, so that an item comes after the one it waits for.
    for (uint32_t chunk = 0; chunk * length_ * dilation < segment.num_tokens; ++chunk) {
      for (uint32_t residue = 0; residue < dilation; ++residue) {
        item.local = chunk * length_ * dilation + residue;
        if (item.local >= segment.num_tokens) break;
        item.count = std::min(length_, CeilDivide(segment.num_tokens - item.local, dilation));
        std::memcpy(to_ + count_++, &item, sizeof(item));
      }
    }
  }

  const PlanShape& shape_;
  const BatchPlan& plan_;
  const absl::Span<const PartAddress> parts_;
  ChainItem* const to_;
  const uint32_t length_;
  uint32_t count_ = 0;
};

}  // namespace

PlanImageLayout::PlanImageLayout(const PlanShape& shape, uint32_t token_capacity, PlanRows kind) {
  const uint64_t rows = uint64_t{token_capacity} * shape.geometry.heads();
  items = sizeof(PlanHeader);
  gather = hash_places = items + uint64_t{token_capacity} * sizeof(ChainItem);
  hash_ids = Align(hash_places + uint64_t{token_capacity} * sizeof(uint32_t));
  moves = kind == PlanRows::kPlaces
              ? Align(gather + rows * sizeof(uint32_t))
              : Align(hash_ids + uint64_t{token_capacity} * shape.geometry.ngram_size * sizeof(uint32_t));
  pairs = moves + uint64_t{shape.carries} * sizeof(UndoMove);
  bytes = pairs + Align((shape.staging_rows + rows) * sizeof(RowPair));
}

namespace {

void WriteHashed(const PlanImageLayout& layout, const BatchPlan& plan, std::byte* to) {
  auto* places = reinterpret_cast<uint32_t*>(to + layout.hash_places);
  auto* const ids = reinterpret_cast<uint32_t*>(to + layout.hash_ids);
  uint32_t next = 0;
  for (const HashedTokens& hashed : plan.hashed) {
    std::copy(hashed.history.begin(), hashed.history.end(), ids + next);
    next += static_cast<uint32_t>(hashed.history.size());
    std::copy(hashed.tokens.begin(), hashed.tokens.end(), ids + next);
    for (size_t i = 0; i < hashed.tokens.size(); ++i) *places++ = next++;
  }
}

}  // namespace

PlanImageCounts WritePlanImage(const PlanShape& shape, const PlanImageLayout& layout, const BatchPlan& plan,
                               absl::Span<const PartAddress> parts, uint32_t stamp, std::byte* to) {
  PlanImageCounts counts;
  auto* pairs = reinterpret_cast<RowPair*>(to + layout.pairs);
  for (const Fill& fill : plan.fills) pairs[counts.fills++] = {fill.staging_row, fill.slot.value()};
  counts.uploads = counts.fills;
  WriteHashed(layout, plan, to);
  auto* gather = reinterpret_cast<uint32_t*>(to + layout.gather);
  uint32_t any = 0;
  for (size_t i = 0; i < plan.gather.size(); ++i) {
    gather[i] = plan.gather[i].bits();
    any |= plan.gather[i].bits();
  }
  for (size_t i = 0; (any & GatherIndex::kStagingBit) != 0 && i < plan.gather.size(); ++i) {
    if (plan.gather[i].in_staging()) pairs[counts.uploads++] = {plan.gather[i].row(), 0};
  }
  counts.items = plan.embeddings != nullptr
                     ? 0
                     : Items(shape, plan, parts, reinterpret_cast<ChainItem*>(to + layout.items)).Write();
  auto* moves = reinterpret_cast<UndoMove*>(to + layout.moves);
  for (const SegmentPlan& segment : plan.segments) {
    const uint32_t rows = std::min(segment.ring.valid, shape.geometry.state_len());
    if (segment.carry == kNoCarry || rows == 0 || !(segment.undo_to_ring || segment.ring_to_undo)) continue;
    // After a move back by undo the undo rows are those a long step would set aside.
    moves[counts.moves++] = {segment.carry.value(), segment.ring.cursor, rows, segment.undo_to_ring ? 1u : 0u};
  }
  const PlanHeader header{counts.items, plan.num_tokens * shape.geometry.heads(), stamp, counts.moves};
  std::memcpy(to, &header, sizeof(header));
  counts.bytes = counts.uploads > 0 ? layout.pairs + counts.uploads * sizeof(RowPair)
                                    : layout.moves + counts.moves * sizeof(UndoMove);
  return counts;
}

}  // namespace pleiad::cuda
