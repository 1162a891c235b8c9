// A batch plan as the kernels read it: one block of memory the host writes and the device reads. Host code alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/base/plan.h"
#include "core/device/cuda/kernels.h"
#include "core/model/geometry.h"

namespace pleiad::cuda {

// What a plan is written for; fixed at start.
struct PlanShape {
  Geometry geometry;
  uint32_t rollback_tokens = 0;
  uint32_t staging_rows = 0;
  uint32_t carries = 0;
  uint32_t concurrent_items = 1;  // a batch is cut into about as many
};

// Where the kernels find the tensors of a part; each token's row is as kSpread or its dtypes say.
struct PartAddress {
  uint64_t input = 0;  // 0: zeros
  uint64_t output = 0;
  bool spread = false;
};

// How a plan tells which rows it gathers: their places, or the tokens they are found by.
enum class PlanRows : uint8_t { kPlaces, kTokens };

// Offsets in the image, the same for all batches of one `token_capacity`; all are multiples of 16.
struct PlanImageLayout {
  PlanImageLayout(const PlanShape& shape, uint32_t token_capacity, PlanRows rows = PlanRows::kPlaces);

  uint64_t items;        // ChainItem [token_capacity]; the header lies before
  uint64_t gather;       // of kPlaces: GatherIndex bits [token_capacity, heads]
  uint64_t hash_places;  // of kTokens: uint32 [token_capacity], of each token among the ids
  uint64_t hash_ids;     // of kTokens: uint32 [token_capacity * N], history and tokens of each segment
  uint64_t moves;        // UndoMove [carries]
  uint64_t pairs;        // RowPair [staging_rows + token_capacity * heads]: fills, then bypassed rows
  uint64_t bytes;
};

struct PlanImageCounts {
  uint32_t items = 0;
  uint32_t fills = 0;    // of the pairs, the first ones
  uint32_t uploads = 0;  // pairs
  uint32_t moves = 0;
  uint64_t bytes = 0;  // of the image, up to the last that is used
};

// Whether every batch of at most `tokens` tokens becomes items of one token each.
inline bool HasItemsOfOne(const PlanShape& shape, uint32_t tokens) { return tokens <= shape.concurrent_items; }

// Writes `plan`, which has passed CheckPlan and has the layout's kind of rows, at `to` (16-byte aligned, room for the
// layout). `parts` [plan.parts].
PlanImageCounts WritePlanImage(const PlanShape& shape, const PlanImageLayout& layout, const BatchPlan& plan,
                               absl::Span<const PartAddress> parts, uint32_t stamp, std::byte* to);

}  // namespace pleiad::cuda
