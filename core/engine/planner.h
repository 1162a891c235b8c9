// Turns steps at their turn into the device's batch plan. Pure.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/base/plan.h"
#include "core/engine/op.h"
#include "core/model/geometry.h"

namespace pleiad {

// The rows of one segment: ids [first, first + count) of `plan`.
struct RowRange {
  RowPlan* plan = nullptr;
  size_t first = 0;
  size_t count = 0;
};

struct BatchRows {
  std::vector<RowRange> ranges;  // in order of the batch's tokens
};

// Fills `plan` (all but its fills) for steps of one layer whose rows are resolved and whose starts are settled, and
// names the rows it uses: none where the device finds those of one of them, and so of all. `plan` points into the
// steps.
void PlanBatch(absl::Span<StepOp* const> steps, const Geometry& geometry, uint32_t rollback_tokens, BatchPlan& plan,
               BatchRows& rows);

}  // namespace pleiad
