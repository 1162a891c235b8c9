#include "core/engine/planner.h"

#include "core/engine/request_rules.h"
#include "core/engine/sequence_table.h"

namespace pleiad {

void PlanBatch(absl::Span<StepOp* const> steps, const Geometry& geometry, uint32_t rollback_tokens, BatchPlan& plan,
               BatchRows& rows) {
  const size_t heads = geometry.heads();
  size_t segments = 0, rows_of_all = 0;
  bool hashed = false;
  for (const StepOp* step : steps) {
    segments += step->segments.size();
    rows_of_all += step->request.token_ids.size() * heads;
    hashed = hashed || step->hashed;
  }
  plan.segments.reserve(segments);
  plan.gather.reserve(hashed ? 0 : rows_of_all);
  for (StepOp* step : steps) {
    plan.layer = step->layer;
    const uint32_t part_first = plan.num_tokens;
    for (size_t i = 0; i < step->segments.size(); ++i) {
      const SegmentWork& work = step->segments[i];
      const uint32_t tokens = step->request.segments[i].num_tokens;
      if (tokens == 0 && work.start.kind != StartKind::kUndo) continue;
      SegmentPlan segment;
      if (work.carry != nullptr) segment.carry = work.carry->slot;
      segment.first_token = plan.num_tokens;
      segment.num_tokens = tokens;
      segment.ring = work.start.ring;
      segment.undo_to_ring = work.start.kind == StartKind::kUndo;
      segment.ring_to_undo = work.carry != nullptr && tokens > rollback_tokens;
      plan.segments.push_back(segment);
      plan.num_tokens += tokens;
      if (tokens == 0) continue;
      if (hashed) {
        const auto ids = absl::MakeConstSpan(step->request.token_ids).subspan(work.first_token, tokens);
        plan.hashed.push_back({work.start.history, ids});
        continue;
      }
      RowPlan* source = work.prestaged ? work.carry->prestage->plan.get() : step->plans.front().get();
      const auto gather = source->gather().subspan(work.first_row, tokens * heads);
      plan.gather.insert(plan.gather.end(), gather.begin(), gather.end());
      if (!rows.ranges.empty() && rows.ranges.back().plan == source &&
          rows.ranges.back().first + rows.ranges.back().count == work.first_row) {
        rows.ranges.back().count += tokens * heads;
      } else {
        rows.ranges.push_back({source, work.first_row, tokens * heads});
      }
    }
    if (plan.num_tokens == part_first) continue;
    TensorPart part;
    part.first_token = part_first;
    part.num_tokens = plan.num_tokens - part_first;
    if (step->request.input.source == StepInput::Source::kData) {
      part.input = step->request.input.data;
      part.input_pieces = step->request.input.pieces;
    }
    part.memory = step->request.memory;
    part.input_dtype = InputDType(step->request);
    part.output = step->output;
    part.output_dtype = OutputDType(step->request);
    part.kind = step->request.output.kind;
    plan.parts.push_back(part);
    for (const auto& memory : step->request.client_memory) plan.client_memory.push_back(memory.get());
  }
}

}  // namespace pleiad
