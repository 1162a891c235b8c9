#include "core/device/plan_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

absl::Status Bad(absl::string_view field, uint64_t value, absl::string_view rule) {
  return absl::InternalError(absl::StrCat("plan: ", field, " = ", value, ": ", rule));
}

// `items` are segments or parts.
template <typename Items>
absl::Status CheckCover(absl::string_view what, const Items& items, uint32_t tokens) {
  uint64_t next = 0;
  for (const auto& item : items) {
    if (item.first_token != next) return Bad(absl::StrCat(what, ".first_token"), item.first_token, "leaves a gap");
    next += item.num_tokens;
  }
  if (next != tokens) return Bad(absl::StrCat(what, ".num_tokens"), next, absl::StrCat("must add up to ", tokens));
  return absl::OkStatus();
}

absl::Status CheckTensor(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBf16) return absl::OkStatus();
  return Bad("parts.dtype", static_cast<uint64_t>(dtype), "must be F32 or BF16");
}

absl::Status CheckPieces(const TensorPart& part, uint64_t channels) {
  if (part.input_pieces.empty()) return absl::OkStatus();
  if (part.input != nullptr) return Bad("parts.input_pieces", part.input_pieces.size(), "must be 0 beside an input");
  if (part.memory != TensorMemory::kHost) {
    return Bad("parts.memory", static_cast<uint64_t>(part.memory), "must be the host's for an input in pieces");
  }
  uint64_t next = 0;
  for (const TensorPiece& piece : part.input_pieces) {
    if (piece.offset != next) return Bad("parts.input_pieces.offset", piece.offset, absl::StrCat("must be ", next));
    next += piece.bytes;
  }
  const uint64_t bytes = part.num_tokens * channels * ByteSize(part.input_dtype);
  if (next == bytes) return absl::OkStatus();
  return Bad("parts.input_pieces", next, absl::StrCat("bytes must add up to ", bytes));
}

}  // namespace

absl::Status CheckCarry(const DeviceOptions& options, CarrySlot carry, const RingView& ring) {
  if (carry.value() >= options.carries) return Bad("carry", carry.value(), absl::StrCat("must be < ", options.carries));
  const uint32_t ring_rows = options.geometry.state_len() + options.rollback_tokens;
  if (ring.cursor >= ring_rows && ring.cursor != 0) {
    return Bad("ring.cursor", ring.cursor, absl::StrCat("must be < ", ring_rows));
  }
  if (ring.valid > ring_rows) return Bad("ring.valid", ring.valid, absl::StrCat("must be <= ", ring_rows));
  return absl::OkStatus();
}

static absl::Status CheckGather(const DeviceOptions& options, absl::Span<const GatherIndex> gather) {
  // Most plans name slots alone; so many at a time are compared without a branch.
  constexpr size_t kBlock = 1024;
  const auto slots = static_cast<uint32_t>(std::min<uint64_t>(options.arena_slots, GatherIndex::kLimit));
  for (; !gather.empty(); gather.remove_prefix(std::min(gather.size(), kBlock))) {
    const auto block = gather.subspan(0, kBlock);
    uint32_t others = 0;
    for (const GatherIndex index : block) others |= index.bits() >= slots ? 1 : 0;
    if (others == 0) continue;
    for (const GatherIndex index : block) {
      if (index.row() < (index.in_staging() ? options.staging_rows : options.arena_slots)) continue;
      return Bad(index.in_staging() ? "gather staging row" : "gather slot", index.row(), "is past the end");
    }
  }
  return absl::OkStatus();
}

// In the place of a gather: the tokens of the segments that have some.
static absl::Status CheckHashed(const DeviceOptions& options, const BatchPlan& plan) {
  if (options.row_hashes.empty()) return Bad("hashed.size", plan.hashed.size(), "must be 0 without row_hashes");
  if (!plan.gather.empty()) return Bad("gather.size", plan.gather.size(), "must be 0 beside hashed tokens");
  if (!plan.fills.empty()) return Bad("fills.size", plan.fills.size(), "must be 0 beside hashed tokens");
  if (plan.embeddings != nullptr) return Bad("embeddings", 1, "must be absent beside hashed tokens");
  size_t i = 0;
  for (const SegmentPlan& segment : plan.segments) {
    if (segment.num_tokens == 0) continue;
    if (i == plan.hashed.size()) return Bad("hashed.size", i, "must be that of the segments with tokens");
    const HashedTokens& hashed = plan.hashed[i++];
    if (hashed.tokens.size() != segment.num_tokens) {
      return Bad("hashed.tokens.size", hashed.tokens.size(), absl::StrCat("must be ", segment.num_tokens));
    }
    if (hashed.history.size() != options.geometry.context_len()) {
      return Bad("hashed.history.size", hashed.history.size(),
                 absl::StrCat("must be ", options.geometry.context_len()));
    }
  }
  if (i == plan.hashed.size()) return absl::OkStatus();
  return Bad("hashed.size", plan.hashed.size(), absl::StrCat("must be ", i));
}

// Segments and parts cover the batch.
static absl::Status CheckSegments(const DeviceOptions& options, const BatchPlan& plan) {
  size_t part = 0;
  for (const SegmentPlan& segment : plan.segments) {
    if (segment.num_tokens > 0) {
      const auto end = [&] { return plan.parts[part].first_token + plan.parts[part].num_tokens; };
      while (segment.first_token >= end()) ++part;
      if (segment.num_tokens > end() - segment.first_token) {
        return Bad("segment.num_tokens", segment.num_tokens, "passes the end of its part");
      }
    }
    if (segment.carry == kNoCarry) continue;
    PLEIAD_RETURN_IF_ERROR(CheckCarry(options, segment.carry, segment.ring));
    if (segment.num_tokens > options.rollback_tokens && !segment.ring_to_undo) {
      return Bad("segment.num_tokens", segment.num_tokens, "needs ring_to_undo beyond rollback_tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const DeviceOptions& options, size_t layers, TensorMemory memory, const BatchPlan& plan) {
  if (plan.layer.value() >= layers) {
    return Bad("layer", plan.layer.value(), absl::StrCat("must be < ", layers));
  }
  if (plan.num_tokens > options.max_tokens) {
    return Bad("num_tokens", plan.num_tokens, absl::StrCat("must be <= max_tokens = ", options.max_tokens));
  }
  const uint64_t rows = plan.hashed.empty() ? uint64_t{plan.num_tokens} * options.geometry.heads() : 0;
  if (!plan.hashed.empty()) PLEIAD_RETURN_IF_ERROR(CheckHashed(options, plan));
  if (plan.gather.size() != rows) return Bad("gather.size", plan.gather.size(), absl::StrCat("must be ", rows));
  for (const Fill& fill : plan.fills) {
    if (fill.slot.value() >= options.arena_slots) return Bad("fill.slot", fill.slot.value(), "is past the arena");
    if (fill.staging_row >= options.staging_rows) return Bad("fill.staging_row", fill.staging_row, "is past staging");
  }
  PLEIAD_RETURN_IF_ERROR(CheckGather(options, plan.gather));
  if (plan.embeddings != nullptr) {
    if (plan.segments.empty() && plan.parts.empty()) return absl::OkStatus();
    return Bad("segments.size", plan.segments.size(), "must be 0 with embeddings");
  }
  PLEIAD_RETURN_IF_ERROR(CheckCover("segments", plan.segments, plan.num_tokens));
  PLEIAD_RETURN_IF_ERROR(CheckCover("parts", plan.parts, plan.num_tokens));
  PLEIAD_RETURN_IF_ERROR(CheckSegments(options, plan));
  for (const TensorPart& part : plan.parts) {
    PLEIAD_RETURN_IF_ERROR(CheckTensor(part.input_dtype));
    PLEIAD_RETURN_IF_ERROR(CheckTensor(part.output_dtype));
    PLEIAD_RETURN_IF_ERROR(CheckPieces(part, options.geometry.channels()));
    if (part.num_tokens > 0 && part.output == nullptr) return Bad("parts.output", 0, "must not be null");
    if (part.memory == TensorMemory::kHost) continue;
    if (memory == TensorMemory::kHost) {
      return Bad("parts.memory", static_cast<uint64_t>(part.memory), "this device reads host memory alone");
    }
    const auto addresses = reinterpret_cast<uintptr_t>(part.input) | reinterpret_cast<uintptr_t>(part.output);
    if (addresses % 16 != 0) return Bad("parts address", addresses, "must be a multiple of 16 on the device");
  }
  return absl::OkStatus();
}

absl::Status CheckWholeCarry(const DeviceOptions& options, CarrySlot carry, size_t values) {
  const size_t rows = size_t{2} * options.geometry.state_len() + options.rollback_tokens;
  const size_t expected = rows * options.geometry.channels();
  if (carry.value() >= options.carries) {
    return absl::InvalidArgumentError(absl::StrCat("carry = ", carry.value(), ": must be < ", options.carries));
  }
  if (values == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows.size = ", values, ": must be ", expected));
}

}  // namespace pleiad
