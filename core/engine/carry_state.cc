#include "core/engine/carry_state.h"

#include <algorithm>

namespace pleiad {
namespace {

uint32_t Back(uint32_t cursor, uint64_t rows, uint32_t ring_rows) {
  if (ring_rows == 0) return 0;
  return static_cast<uint32_t>((uint64_t{cursor} + ring_rows - rows % ring_rows) % ring_rows);
}

}  // namespace

CarryState::CarryState(const CarryShape& shape) : shape_(shape) {
  history_.reserve(shape.context_len + shape.rollback_tokens);
  undo_history_.reserve(shape.context_len);
  Reset();
}

void CarryState::Reset() {
  position_ = low_ = last_step_start_ = head_ = Position(0);
  ring_ = RingView{};
  history_.assign(shape_.context_len, shape_.eos_token_id);
  has_undo_ = false;
}

void CarryState::Restore(Position position, absl::Span<const uint32_t> history) {
  position_ = low_ = last_step_start_ = head_ = position;
  ring_.valid = shape_.state_len;
  ring_.cursor = shape_.ring_rows() == 0 ? 0 : shape_.state_len % shape_.ring_rows();
  history_.assign(history.begin(), history.end());
  has_undo_ = false;
}

CarryImage CarryState::Image() const {
  CarryImage image;
  image.position = position_;
  image.low = low_;
  image.last_step_start = last_step_start_;
  image.head = head_;
  image.ring = ring_;
  image.history.assign(history_.begin(), history_.end());
  image.has_undo = has_undo_;
  if (!has_undo_) return image;
  image.undo_valid = undo_valid_;
  image.undo_history.assign(undo_history_.begin(), undo_history_.end());
  return image;
}

void CarryState::Adopt(const CarryImage& image) {
  position_ = image.position;
  low_ = image.low;
  last_step_start_ = image.last_step_start;
  head_ = image.head;
  ring_ = image.ring;
  history_.assign(image.history.begin(), image.history.end());
  has_undo_ = image.has_undo;
  undo_valid_ = image.undo_valid;
  undo_history_.assign(image.undo_history.begin(), image.undo_history.end());
}

std::optional<StepStart> CarryState::At(std::optional<Position> wanted) const {
  const Position target = wanted.value_or(position_);
  StepStart start;
  start.position = target;
  const bool in_ring = target >= low_ && (target <= position_ || target == last_step_start_) && target <= head_;
  if (in_ring) {
    const uint64_t back = head_.value() - target.value();
    start.ring.cursor = Back(ring_.cursor, back, shape_.ring_rows());
    start.ring.valid = ring_.valid - static_cast<uint32_t>(std::min<uint64_t>(back, ring_.valid));
    const auto end = history_.end() - static_cast<ptrdiff_t>(back);
    start.history.assign(end - shape_.context_len, end);
    return start;
  }
  if (has_undo_ && target == last_step_start_) {
    start.kind = StartKind::kUndo;
    start.ring.cursor = Back(ring_.cursor, head_.value() - target.value(), shape_.ring_rows());
    start.ring.valid = undo_valid_;
    start.history = undo_history_;
    return start;
  }
  return std::nullopt;
}

StepStart CarryState::Fresh() const {
  StepStart start;
  start.kind = StartKind::kFresh;
  start.history.assign(shape_.context_len, shape_.eos_token_id);
  return start;
}

void CarryState::MoveTo(const StepStart& start) {
  position_ = start.position;
  if (start.kind == StartKind::kRing) return;
  low_ = last_step_start_ = head_ = start.position;
  ring_ = start.ring;
  history_.assign(start.history.begin(), start.history.end());
  has_undo_ = false;
}

void CarryState::Commit(const StepStart& start, absl::Span<const uint32_t> tokens) {
  MoveTo(start);
  if (tokens.empty()) return;
  const uint64_t ahead = head_.value() - position_.value();
  history_.resize(history_.size() - static_cast<size_t>(ahead));
  ring_ = start.ring;

  const uint64_t count = tokens.size();
  has_undo_ = count > shape_.rollback_tokens;
  if (has_undo_) {
    undo_valid_ = std::min(start.ring.valid, shape_.state_len);
    undo_history_ = start.history;
  }
  last_step_start_ = start.position;
  const size_t keep = size_t{shape_.context_len} + shape_.rollback_tokens;
  if (tokens.size() >= keep) {
    history_.assign(tokens.end() - static_cast<ptrdiff_t>(keep), tokens.end());
  } else {
    const size_t total = history_.size() + tokens.size();
    if (total > keep) history_.erase(history_.begin(), history_.begin() + static_cast<ptrdiff_t>(total - keep));
    history_.insert(history_.end(), tokens.begin(), tokens.end());
  }
  const uint32_t ring_rows = shape_.ring_rows();
  if (ring_rows > 0) ring_.cursor = static_cast<uint32_t>((ring_.cursor + count) % ring_rows);
  ring_.valid = static_cast<uint32_t>(std::min<uint64_t>(ring_.valid + count, ring_rows));
  position_ = head_ = Position(start.position.value() + count);
  if (position_.value() > shape_.rollback_tokens) {
    low_ = std::max(low_, Position(position_.value() - shape_.rollback_tokens));
  }
}

}  // namespace pleiad
