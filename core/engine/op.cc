#include "core/engine/op.h"

#include <utility>

namespace pleiad {

std::function<void()> StepOp::Answer(Outcome outcome) {
  result.outcome = std::move(outcome);
  if (!result.outcome.ok()) result.segments.clear();
  return [fn = std::move(done), answer = std::move(result)]() mutable { fn(std::move(answer)); };
}

void StepOp::GivePlans(std::vector<std::shared_ptr<RowPlan>>& out) {
  for (std::shared_ptr<RowPlan>& plan : plans) out.push_back(std::move(plan));
  plans.clear();
}

void LookupOp::GivePlans(std::vector<std::shared_ptr<RowPlan>>& out) {
  if (plan != nullptr) out.push_back(std::move(plan));
}

std::function<void()> LookupOp::Answer(Outcome outcome) {
  result.outcome = std::move(outcome);
  if (!result.outcome.ok()) {
    result.row_ids.clear();
    result.embeddings.clear();
  }
  return [fn = std::move(done), answer = std::move(result)]() mutable { fn(std::move(answer)); };
}

std::function<void()> GetOp::Answer(Outcome outcome) {
  result.outcome = std::move(outcome);
  return [fn = std::move(done), answer = std::move(result)]() mutable { fn(std::move(answer)); };
}

std::function<void()> SnapshotOp::Answer(Outcome outcome) {
  result.outcome = std::move(outcome);
  if (!result.outcome.ok()) result.layers.clear();
  return [fn = std::move(done), answer = std::move(result)]() mutable { fn(std::move(answer)); };
}

std::function<void()> RestoreOp::Answer(Outcome outcome) {
  return [fn = std::move(done), answer = std::move(outcome)]() mutable { fn(std::move(answer)); };
}

void RestoreOp::TakeBlobs(absl::Span<const CarryBlob> blobs, const ModelConfig& config) {
  for (const CarryBlob& blob : blobs) {
    Layer layer;
    layer.layer = *config.Ordinal(blob.layer);
    layer.position = blob.position.value_or(Position(0));
    layer.aux = *ParseAuxBlob(blob.aux, config.geometry, config.vocab_size);
    layers.push_back(std::move(layer));
  }
}

std::function<void()> ReleaseOp::Answer(Outcome outcome) {
  if (!done) return [] {};
  ReleaseResult result;
  result.released = outcome.ok();
  result.outcome = std::move(outcome);
  return [fn = std::move(done), answer = std::move(result)]() mutable { fn(std::move(answer)); };
}

}  // namespace pleiad
